// Peers that lie: each has a script of its own, drawn from the seed, and says now and then something else
// than its machine does. A lie is refused where the broker can tell, and then it costs the run what was done
// since the last recovery point; some are believed today, which lies() says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "proto/messages.h"
#include "replicas/left_out.h"
#include "sim/network.h"

namespace weft::sim {

enum class Lie : uint8_t {
  MissingTensors,
  OtherShapes,
  EmptyReports,
  TensorsTwice,
  ForeignLosses,
  WrongCounts,
  NegativeSquares,
  WrongSamples,
  ReadyForOthers,
  StalePlans,
  ReportsTwice,
  Unasked,
  ResumesAlways,
  StandsByWithout,
  FailsStages,
  WildNumbers,
  LacksTensors,
  SilentWhenReady,
  WithholdsTensors,
  RandomHashes,
  // Of who has a part in a replica with local steps.
  NanDifferences,
  HugeDifferences,
  HugeMeans,
  RefusesOthers,
  WrongMeans,
  OtherPieces,
  HidesPieces,
  // Believed.
  NanSquares,
  NanTensors,
  FailsForEver,
  WrongNumbers,
};
struct LieName {
  Lie lie;
  std::string_view name, what;
  bool is_believed;  // a job may end by it, or end wrong, or not end
  bool is_of_replicas = false;
};
std::span<const LieName> lies();
std::optional<Lie> lie_named(std::string_view name);

class Liar {
 public:
  // Nothing: some of those that are not believed; `of_replicas`: of such too that jobs with replicas alone
  // hear, but for some.
  Liar(uint64_t seed, std::optional<Lie> only, bool of_replicas = false);

  // What the broker is told instead of the truth. `stage`: what the peer has; null: none.
  std::vector<proto::Message> say(const proto::Message& truth, const proto::AssignStage* stage);
  // What it says at once to something that the broker told it, beside what its machine does.
  std::vector<proto::Message> answer(const proto::Message& told);
  // Whether what it sends to its neighbours is to be spoilt, this time.
  bool spoils_tensor() { return tells(Lie::NanTensors); }
  // Whether the means that it takes next are others than they should be, for itself as well.
  bool spoils_means() { return tells(Lie::WrongMeans); }
  bool withholds_tensor() { return tells(Lie::WithholdsTensors); }
  // What it sends to replicas with which it agrees. Out of all proportion only where others can compare.
  void change(const plan::Seat& to, TensorPacket& packet, const proto::AssignStage& stage,
              const replicas::LeftOut* left_out);
  uint64_t told() const { return told_; }  // lies
  bool may_tell(Lie lie) const { return std::find(script_.begin(), script_.end(), lie) != script_.end(); }

 private:
  bool tells(Lie lie);  // now
  void change(proto::StepReport& report, const proto::AssignStage& stage);
  void change(proto::CheckpointReport& report);
  void change(proto::EvaluationReport& report);
  proto::DifferenceRefused refusal_after(const proto::StepReport& report, const proto::AssignStage& stage);
  std::vector<proto::Message> around(const proto::Message& truth, const proto::AssignStage* stage);

  Draw draw_;
  uint64_t seldom_ = 1;  // it lies once in so many times
  std::vector<Lie> script_;
  bool is_silent_ = false;
  uint64_t told_ = 0;
};

}  // namespace weft::sim
