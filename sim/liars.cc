#include "sim/liars.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <set>

#include "base/overloaded.h"
#include "replicas/norm_guard.h"
#include "replicas/outer_round.h"

namespace weft::sim {

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::array kLies = {
    LieName{Lie::MissingTensors, "missing-tensors", "snapshots lack a tensor", false},
    LieName{Lie::OtherShapes, "other-shapes", "a tensor of a snapshot has another shape", false},
    LieName{Lie::EmptyReports, "empty-reports", "snapshots and steps without anything in them", false},
    LieName{Lie::TensorsTwice, "tensors-twice", "a snapshot has one tensor twice and another not", false},
    LieName{Lie::ForeignLosses, "foreign-losses", "losses from a stage that has none", false},
    LieName{Lie::WrongCounts, "wrong-counts", "one loss, square or count more or less than there are", false},
    LieName{Lie::NegativeSquares, "negative-squares", "sums of squares below zero", false},
    LieName{Lie::WrongSamples, "wrong-samples", "other samples than the step's", false},
    LieName{Lie::ReadyForOthers, "ready-for-others", "ready with stages that are not its own", false},
    LieName{Lie::StalePlans, "stale-plans", "all that it says also of plans before and after", false},
    LieName{Lie::ReportsTwice, "reports-twice", "each report twice", false},
    LieName{Lie::Unasked, "unasked", "reports of what nobody asked for", false},
    LieName{Lie::ResumesAlways, "resumes-always", "resumes a stage that it was not to resume", false},
    LieName{Lie::StandsByWithout, "stands-by-without", "stands by at once, and with nothing", false},
    LieName{Lie::FailsStages, "fails-stages", "fails each stage that it gets", false},
    LieName{Lie::WildNumbers, "wild-numbers", "times and rates that are none, or without end", false},
    LieName{Lie::LacksTensors, "lacks-tensors", "fails a stage as if its tensors were gone", false},
    LieName{Lie::SilentWhenReady, "silent-when-ready", "says nothing of its stage once it is ready", false},
    LieName{Lie::WithholdsTensors, "withholds-tensors", "computes, and sends nothing to its neighbours",
            false},
    LieName{Lie::RandomHashes, "random-hashes", "snapshots of tensors that nobody has", false},
    LieName{Lie::NanDifferences, "nan-differences", "what is not finite, to replicas that agree with it",
            false, true},
    LieName{Lie::HugeDifferences, "huge-differences", "differences a million times as large as others'",
            false, true},
    LieName{Lie::HugeMeans, "huge-means", "means a million times as large as others'", false, true},
    LieName{Lie::RefusesOthers, "refuses-others", "that what other replicas sent is out of all proportion",
            false, true},
    LieName{Lie::WrongMeans, "wrong-means", "means that might be, and goes on from them itself", false, true},
    LieName{Lie::OtherPieces, "other-pieces", "shows another difference than it had sent", false, true},
    LieName{Lie::HidesPieces, "hides-pieces", "shows nothing of what was agreed on", false, true},
    LieName{Lie::NanSquares, "nan-squares", "gradients that are not finite", true},
    LieName{Lie::NanTensors, "nan-tensors", "tensors that are not finite, to its neighbours", true},
    LieName{Lie::FailsForEver, "fails-for-ever", "fails a stage as if it were the job's fault", true},
    LieName{Lie::WrongNumbers, "wrong-numbers", "losses and squares that might be", true},
};

// Huge differences others can compare only where all else is well; means are looked at where nobody is left
// out; and where what replicas say of a snapshot differs the job ends.
constexpr std::array kNotAmongReplicas = {Lie::HugeDifferences, Lie::HugeMeans, Lie::WrongMeans,
                                          Lie::RandomHashes};
bool is_among_replicas(Lie lie) {
  return std::find(kNotAmongReplicas.begin(), kNotAmongReplicas.end(), lie) == kNotAmongReplicas.end();
}

bool is_report(const proto::Message& message) {
  return std::holds_alternative<proto::StepReport>(message) ||
         std::holds_alternative<proto::CheckpointReport>(message) ||
         std::holds_alternative<proto::EvaluationReport>(message) ||
         std::holds_alternative<proto::PredictionReport>(message) ||
         std::holds_alternative<proto::MeanPiece>(message);
}
}  // namespace

std::span<const LieName> lies() { return kLies; }

std::optional<Lie> lie_named(std::string_view name) {
  for (const LieName& lie : kLies)
    if (lie.name == name) return lie.lie;
  return std::nullopt;
}

Liar::Liar(uint64_t seed, std::optional<Lie> only, bool of_replicas) : draw_(seed, 0x6c696172) {
  seldom_ = draw_.between(1, 8);
  if (only) {
    script_ = {*only};
    return;
  }
  std::vector<Lie> refused;
  for (const LieName& lie : kLies)
    if (!lie.is_believed && (of_replicas ? is_among_replicas(lie.lie) : !lie.is_of_replicas))
      refused.push_back(lie.lie);
  for (uint64_t count = draw_.between(1, 3); count > 0; --count)
    script_.push_back(refused[draw_.below(refused.size())]);
}

bool Liar::tells(Lie lie) {
  if (!may_tell(lie) || !draw_.one_in(seldom_)) return false;
  ++told_;
  return true;
}

void Liar::change(proto::StepReport& report, const proto::AssignStage& stage) {
  const bool is_empty = tells(Lie::EmptyReports);
  if (is_empty) report.losses = report.squares = {};
  if (tells(Lie::ForeignLosses)) {
    if (report.losses.empty())
      report.losses.assign(stage.training.batch_size / stage.training.microbatch_size, 0.5);
    else
      report.losses.clear();
  }
  if (!is_empty && tells(Lie::WrongCounts)) {  // one more than none might be right
    std::vector<double>& numbers = draw_.one_in(2) || report.losses.empty() ? report.squares : report.losses;
    if (draw_.one_in(2) && !numbers.empty())
      numbers.pop_back();
    else
      numbers.push_back(1);
  }
  if (!report.squares.empty()) {
    double& square = report.squares[draw_.below(report.squares.size())];
    if (tells(Lie::NegativeSquares)) square = draw_.one_in(2) ? -1 : -kInfinity;
    if (tells(Lie::NanSquares)) square = draw_.one_in(2) ? kNan : kInfinity;
    if (tells(Lie::WrongNumbers)) square += 1;
  }
  if (!report.losses.empty() && tells(Lie::WrongNumbers)) report.losses.back() += 1;
  if (tells(Lie::WrongSamples)) {
    if (report.sample_positions.empty() || draw_.one_in(3))
      report.sample_positions.push_back(0);
    else
      report.sample_positions[draw_.below(report.sample_positions.size())] += 1 + draw_.below(1000);
  }
  if (tells(Lie::WildNumbers)) {
    const std::array wild = {0.0, 1e-300, 1e300, std::numeric_limits<double>::max()};  // that pass the codec
    report.seconds = wild[draw_.below(wild.size())];
    report.seconds_busy = wild[draw_.below(wild.size())];
    proto::LinkUse use{.seat = {static_cast<uint32_t>(draw_.below(100))},
                       .bytes_sent = std::numeric_limits<uint64_t>::max(),
                       .seconds_waiting = wild[draw_.below(wild.size())],
                       .bytes_timed = draw_.next(),
                       .seconds_timed = wild[draw_.below(wild.size())],
                       .fastest_bytes_per_second = wild[draw_.below(wild.size())]};
    if (!report.links.empty() && draw_.one_in(2)) use.seat = report.links.front().seat;
    report.links.push_back(use);
  }
}

void Liar::change(proto::CheckpointReport& report) {
  if (tells(Lie::EmptyReports)) report.tensors.clear();
  if (report.tensors.empty()) return;
  const size_t which = draw_.below(report.tensors.size());
  proto::TensorReference& tensor = report.tensors[which];
  if (tells(Lie::RandomHashes))
    for (uint8_t& byte : tensor.sha256.bytes) byte = static_cast<uint8_t>(draw_.below(256));
  if (tells(Lie::OtherShapes)) tensor.spec.shape.push_back(2);
  if (tells(Lie::TensorsTwice)) tensor = report.tensors[(which + 1) % report.tensors.size()];
  if (tells(Lie::MissingTensors)) report.tensors.erase(report.tensors.begin() + static_cast<long>(which));
}

void Liar::change(proto::EvaluationReport& report) {
  if (tells(Lie::EmptyReports)) report.loss = report.correct = report.counted = {};
  if (tells(Lie::WrongCounts)) report.counted.push_back(draw_.one_in(2) ? 4 : -4);
  if (tells(Lie::ForeignLosses)) report.correct.push_back(kNan);
  if (tells(Lie::WrongNumbers) && !report.loss.empty()) report.loss.back() += 1;
}

namespace {

// Where the other seat has learnt something, and has the means of as many owners as it takes to compare, as
// far as is known here.
bool can_weigh(const plan::Seat& to, const TensorPacket& packet, const proto::AssignStage& stage,
               const replicas::LeftOut* left_out) {
  const replicas::LocalSteps& local = stage.local->steps;
  std::set<uint32_t> owners;
  for (const proto::AgreedTensor& tensor : stage.local->tensors)
    if (tensor.stages[to.replica] == to.stage)
      owners.insert(left_out != nullptr ? left_out->owner_of(tensor.owner) : tensor.owner);
  return owners.size() >= replicas::kEnoughToCompare &&
         next_round(local.terms, packet.header.step, local.steps).steps[to.replica] > 0;
}

}  // namespace

void Liar::change(const plan::Seat& to, TensorPacket& packet, const proto::AssignStage& stage,
                  const replicas::LeftOut* left_out) {
  if (packet.header.direction != proto::Direction::Forward) {
    if (!can_weigh(to, packet, stage, left_out) || !tells(Lie::HugeMeans)) return;
    packet.value = mix(packet.value, 1);
    packet.square *= 1e12;
    return;
  }
  if (tells(Lie::NanDifferences)) packet.spoilt = true;
  const replicas::LocalSteps& local = stage.local->steps;
  const std::vector<uint64_t> steps = next_round(local.terms, packet.header.step, local.steps).steps;
  size_t compared = 0;
  for (uint32_t replica = 0; replica < steps.size(); ++replica)
    compared += steps[replica] > 0 && (left_out == nullptr || !left_out->has(replica)) ? 1 : 0;
  if (compared < replicas::kEnoughToCompare || !tells(Lie::HugeDifferences)) return;
  packet.value = mix(packet.value, 1);
  packet.square *= 1e12;
}

std::vector<proto::Message> Liar::say(const proto::Message& truth, const proto::AssignStage* stage) {
  if (std::holds_alternative<proto::Hello>(truth)) return {truth};
  if (std::holds_alternative<proto::StageReady>(truth)) is_silent_ = tells(Lie::SilentWhenReady);
  if (is_silent_ && (is_report(truth) || std::holds_alternative<proto::StageFailed>(truth))) return {};
  if (std::holds_alternative<proto::MeanPiece>(truth) && tells(Lie::HidesPieces)) return {};
  std::vector<proto::Message> told = around(truth, stage);
  if (const auto* report = std::get_if<proto::StepReport>(&truth);
      report != nullptr && stage != nullptr && stage->local && tells(Lie::RefusesOthers))
    told.push_back(refusal_after(*report, *stage));
  proto::Message changed = truth;
  std::visit(Overloaded{
                 [&](proto::StepReport& m) {
                   if (stage != nullptr) change(m, *stage);
                 },
                 [&](proto::CheckpointReport& m) { change(m); },
                 [&](proto::EvaluationReport& m) { change(m); },
                 [&](proto::MeanPiece& m) {
                   if (m.shown.difference.empty() || !tells(Lie::OtherPieces)) return;
                   float& first = m.shown.difference.front();
                   first = std::bit_cast<float>(std::bit_cast<uint32_t>(first) ^ 1);
                 },
                 [&](proto::PredictionReport& m) {
                   if (tells(Lie::EmptyReports)) m.outputs.clear();
                   if (!m.outputs.empty() && tells(Lie::OtherShapes)) m.outputs[0].spec.shape.push_back(2);
                   if (!m.outputs.empty() && tells(Lie::TensorsTwice)) m.outputs.push_back(m.outputs[0]);
                   if (tells(Lie::Unasked)) m.microbatch += 100'000;
                 },
                 [&](proto::Heartbeat& m) {
                   if (m.work && tells(Lie::WildNumbers)) {
                     m.work->seconds_busy = draw_.one_in(2) ? 0 : 1e300;
                     m.work->segments_done = draw_.one_in(2) ? 0 : std::numeric_limits<uint64_t>::max();
                   }
                 },
                 [&](proto::ProbeReport& m) {
                   if (!tells(Lie::WildNumbers)) return;
                   m.failure.reset();
                   m.bytes_per_second = draw_.one_in(2) ? 0 : 1e300;
                   m.round_trip = draw_.one_in(2) ? Duration{} : Duration(std::chrono::hours(10'000));
                 },
                 [](auto&) {},
             },
             changed);
  told.push_back(std::move(changed));
  if (is_report(truth) && tells(Lie::ReportsTwice)) told.push_back(told.back());
  return told;
}

proto::DifferenceRefused Liar::refusal_after(const proto::StepReport& report,
                                             const proto::AssignStage& stage) {
  const replicas::LocalSteps& local = stage.local->steps;
  return {.run = stage.run,
          .plan_version = stage.plan_version,
          .step = next_agreement(local, std::min(report.step + 1, last_inner_step(local))),
          .replica = (stage.seat.replica + 1) % local.terms.count,
          .ratio = draw_.one_in(2) ? 50.0 : 0.0};
}

// What it says before, of whatever it likes.
std::vector<proto::Message> Liar::around(const proto::Message& truth, const proto::AssignStage* stage) {
  std::vector<proto::Message> told;
  if (stage == nullptr) {
    if (tells(Lie::ReadyForOthers))
      told.push_back(proto::StageReady{1, static_cast<proto::PlanVersion>(draw_.below(4)), {}, {}});
    return told;
  }
  const proto::JobNumber run = stage->run;
  const proto::PlanVersion version = stage->plan_version;
  if (tells(Lie::ReadyForOthers))
    told.push_back(proto::StageReady{.run = run + draw_.below(2),
                                     .plan_version = version + (draw_.one_in(2) ? 1 : 0),
                                     .persistent = {1},
                                     .microbatch = {1}});
  if (is_report(truth) && tells(Lie::StalePlans)) {
    proto::Message stale = truth;
    std::visit(
        [&](auto& m) {
          if constexpr (requires { m.plan_version; }) m.plan_version += draw_.one_in(2) ? 1 : -1;
        },
        stale);
    told.push_back(std::move(stale));
  }
  if (tells(Lie::ResumesAlways)) told.push_back(proto::StageResumed{run, version, draw_.below(1000)});
  if (tells(Lie::Unasked)) {
    const uint64_t step = 1'000'000 + draw_.below(200);
    switch (draw_.below(5)) {
      case 0:
        told.push_back(proto::CheckpointReport{run, version, step, stage->tensors, {}});
        break;
      case 1:
        told.push_back(proto::EvaluationReport{run, version, step, 0, {1}, {1}, {1}});
        break;
      case 2:
        told.push_back(proto::StepReport{.run = run, .plan_version = version, .step = step});
        break;
      case 3:
        told.push_back(proto::ComparisonReport{run, version, step, {1, 1, 1}, {1, 1, 1}});
        break;
      default:
        told.push_back(proto::PredictionReport{.run = run, .plan_version = version, .microbatch = 3});
    }
  }
  return told;
}

std::vector<proto::Message> Liar::answer(const proto::Message& told) {
  std::vector<proto::Message> answers;
  if (const auto* list = std::get_if<proto::StandBy>(&told);
      list != nullptr && !list->tensors.empty() && tells(Lie::StandsByWithout))
    answers.push_back(proto::StandingBy{list->run, list->step, {}, list->list});
  if (const auto* stage = std::get_if<proto::AssignStage>(&told)) {
    proto::StageFailed failed{.run = stage->run, .plan_version = stage->plan_version};
    failed.error = {ErrorCode::Internal, "it likes to"};
    if (tells(Lie::FailsStages)) {
      if (draw_.one_in(3)) failed.unreachable = plan::Seat{static_cast<uint32_t>(draw_.below(4))};
      answers.push_back(failed);
    }
    if (tells(Lie::FailsForEver)) {
      failed.permanent = true;
      answers.push_back(failed);
    }
    if (tells(Lie::LacksTensors)) {
      failed.error.code = ErrorCode::NotFound;
      answers.push_back(failed);
    }
  }
  return answers;
}

}  // namespace weft::sim
