#include "sim/bugs.h"

#include <array>

namespace weft::sim {

std::span<const BugName> bugs() {
  static constexpr std::array kBugs = {
      BugName{Bug::EffectsBeforeDurable, "effects-before-durable",
              "the broker's core speaks before its records are on the disk"},
      BugName{Bug::TransientCalledDurable, "transient-called-durable",
              "blobs that were asked to be durable are wiped with the transient ones"},
      BugName{Bug::TensorTwice, "tensor-twice",
              "a link that comes back adds what is sent again to what was there"},
      BugName{Bug::ReportDropped, "report-dropped", "the first report after a peer came back is lost"},
      BugName{Bug::SnapshotLate, "snapshot-late", "a snapshot is copied after the next update"},
      BugName{Bug::WrongGeneration, "wrong-generation",
              "a new plan takes the tensors of the recovery point before"},
      BugName{Bug::CommandTwice, "command-twice",
              "a stage that resumes gets a command twice, under a new number"},
      BugName{Bug::LeaseNeverExpires, "lease-never-expires", "the broker waits for silent peers for ever"},
      BugName{Bug::StaleTensors, "stale-tensors", "what came for a stage that has gone is given to the next"},
      BugName{Bug::WrongNorm, "wrong-norm", "a stage is told the gradient norm of the step before"},
      BugName{Bug::DataShifted, "data-shifted", "after a recovery the feed is one microbatch ahead"},
      BugName{Bug::DiskFullForgets, "disk-full-forgets", "a turn that the disk has no room for is dropped"},
      BugName{Bug::MeanAsItComes, "mean-as-it-comes",
              "replicas' differences are added in the order in which they come"},
      BugName{Bug::LeftOutCounts, "left-out-counts",
              "what a replica has sent is added up, although it was left out since"},
      BugName{Bug::MomentumForgotten, "momentum-forgotten",
              "a stage of a new plan begins without the momentum of the outer rule"},
  };
  return kBugs;
}

std::optional<Bug> bug_named(std::string_view name) {
  for (const BugName& bug : bugs())
    if (bug.name == name) return bug.bug;
  return std::nullopt;
}

}  // namespace weft::sim
