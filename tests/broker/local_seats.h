// Runs whose replicas make local steps: plans made by hand, and seats that do as they are told, on numbers in
// place of tensors. Who makes which step is dealt out here once more, by the words of
// docs/design/replicas.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "broker/records.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_options.h"
#include "tests/broker/programs.h"
#include "tests/support/keys.h"

namespace weft::test {

struct LocalShape {
  uint32_t replicas = 2, stages = 1;  // stages: of each replica
  uint64_t every = 3, steps = 24, begun_after = 0;
  std::vector<uint64_t> shares{};
  uint64_t evaluate_every = 0;
  std::optional<uint64_t> checkpoint_steps{};
  double clip_norm = 0;
  dag::OnDivergence on_divergence = dag::OnDivergence::Stop;
  std::vector<uint64_t> empty_steps{};
  uint32_t replicas_max = 0;  // they come and go, up to so many
  bool equal_bits_required = false;
  std::vector<replicas::StepRange> given_again{};
  std::set<uint64_t> bad{};  // steps of the run whose gradients are not finite
  uint64_t settle_every = 1;
  std::vector<uint32_t> followers{};  // none of which takes means
};

constexpr uint32_t kLocalBatch = 8, kLocalMicrobatches = 2;

// One entry an inner step: by replica the step of the run that it makes, and where its schedule is read.
struct Dealt {
  std::vector<std::optional<uint64_t>> steps{}, scheduled{};
  uint64_t made = 0, made_before_round = 0;
  bool agrees = false;      // a round ends with it
  bool settles = false;     // and all have the same weights after it
  uint64_t end_before = 0;  // with which the round before ended
};
// Steps of a round by replica, where so many are left.
inline std::vector<uint64_t> counts_of(const LocalShape& shape, uint64_t left) {
  std::vector<uint64_t> whole(shape.replicas, shape.every);
  if (!shape.shares.empty()) whole = shape.shares;
  for (const uint32_t follower : shape.followers) whole[follower] = 0;
  uint64_t all = 0, more = 0;
  for (const uint64_t share : whole) all += share;
  if (left >= all) return whole;
  std::vector<uint64_t> counts;
  for (const uint64_t share : whole) more += counts.emplace_back(left * share / all);
  for (uint32_t r = 0; more < left; ++r)
    if (whole[r] > 0) ++counts[r], ++more;
  return counts;
}
// Whose samples the step takes: of those that are given again as long as there are any.
inline uint64_t samples_of(const LocalShape& shape, uint64_t step) {
  std::vector<uint64_t> again;
  for (const auto& range : shape.given_again)
    for (uint64_t i = 0; i < range.count; ++i) again.push_back(range.first + i);
  const uint64_t index = step - shape.begun_after - 1;
  return index < again.size() ? again[index] : step;
}
inline std::map<uint64_t, Dealt> deal(const LocalShape& shape) {
  std::map<uint64_t, Dealt> dealt;
  uint64_t inner = shape.begun_after, end_before = inner;
  for (uint64_t before = shape.begun_after; before < shape.steps;) {
    const std::vector<uint64_t> counts = counts_of(shape, shape.steps - before);
    uint64_t in_round = 0, longest = 0, working = 0;
    for (const uint64_t count : counts) {
      in_round += count;
      longest = std::max(longest, count);
      working += count > 0;
    }
    uint64_t made = before;
    std::vector<uint64_t> own(shape.replicas, 0);
    for (uint64_t i = 0; i < longest; ++i) {
      Dealt& at = dealt[++inner];
      uint64_t first = before + 1;
      for (uint32_t r = 0; r < shape.replicas; ++r) {
        // Its next one, as soon as it is behind an even pace; without shares, at once.
        const bool makes = shape.shares.empty() ? i < counts[r] : own[r] * longest < (i + 1) * counts[r];
        const uint64_t by_then = shape.shares.empty() ? own[r] * working
                                 : makes              ? own[r] * longest / counts[r] * in_round / longest
                                                      : 0;
        at.steps.push_back(makes ? std::optional(samples_of(shape, first + own[r])) : std::nullopt);
        at.scheduled.push_back(makes ? std::optional(before + by_then + 1) : std::nullopt);
        made += makes;
        own[r] += makes;
        first += counts[r];
      }
      at.made = made;
      at.made_before_round = before;
      at.agrees = i + 1 == longest;
    }
    const uint64_t settled = shape.settle_every * in_round;  // a whole round's, but for the last one
    dealt[inner].settles = shape.settle_every == 1 || before + in_round == shape.steps ||
                           (before + in_round) / settled > before / settled;
    for (uint64_t i = 0; i < longest; ++i) dealt[inner - i].end_before = end_before;
    end_before = inner;
    before += in_round;
  }
  return dealt;
}

// Means are looked at again: every replica has learnt ones, what comes of them is this, and nothing is owed.
// A hash is the first of the numbers.
constexpr std::array<float, 4> kMeanOfTests{7, 7, 7, 7};
inline Digest hash_of_piece(std::span<const std::byte> bytes) {
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), std::min<size_t>(bytes.size(), sizeof(float)));
  return digest;
}
inline broker::MeanCheckOptions mean_checks() {
  return {.draw = [] { return uint64_t{0}; },
          .hash = &hash_of_piece,
          .take = [](const auto&, const auto&, const auto&) -> std::optional<replicas::TakenPiece> {
            return replicas::TakenPiece{{kMeanOfTests.begin(), kMeanOfTests.end()}, std::vector<float>(4)};
          }};
}

inline std::string weight_of(uint32_t stage) { return "w" + std::to_string(stage); }

// Of a tensor after an inner step: what replicas agree on is the same with all of them.
inline Digest local_digest(const dag::StateKey& key, uint64_t step) {
  Digest digest;
  const std::string text = to_string(key) + "@" + std::to_string(step);
  for (size_t i = 0; i < text.size(); ++i)
    digest.bytes[i % 32] = static_cast<uint8_t>(digest.bytes[i % 32] * 31 + static_cast<uint8_t>(text[i]));
  return digest;
}

// What a snapshot of a seat holds: replica `owner` of a stage's weight takes its mean.
inline std::vector<dag::StateKey> keys_of(const plan::Seat& seat, uint32_t owner) {
  const std::string name = weight_of(seat.stage);
  const auto key = [&](dag::StateSlot slot, uint32_t replica) {
    dag::StateKey made = dag::of_initializer(name, slot);
    made.replica = replica;
    return made;
  };
  using enum dag::StateSlot;
  std::vector<dag::StateKey> keys = {key(Value, 0), key(M, seat.replica), key(V, seat.replica),
                                     key(OuterMomentum, 0), key(Residue, seat.replica)};
  if (seat.replica == owner) keys.push_back(key(ReturnResidue, 0));
  return keys;
}
inline uint32_t owner_of_stage(const LocalShape& shape, uint32_t stage) {
  return (stage + 1) % shape.replicas;
}

// `saved`: what it goes on from, at an inner step; `peers`: by seat, ascending.
inline std::shared_ptr<broker::PlannedRun> local_plan(const LocalShape& shape,
                                                      const broker::CheckpointCommitted* saved = nullptr,
                                                      const std::vector<PeerId>& peers = {},
                                                      proto::PlanVersion version = 1) {
  auto plan = std::make_shared<broker::PlannedRun>();
  replicas::LocalSteps local{.terms = {.count = shape.replicas, .every = shape.every},
                             .steps = shape.steps,
                             .begun_after = shape.begun_after};
  local.terms.codec = compress::parse("int8").value();
  local.terms.shares = shape.shares;
  local.terms.settle_every = shape.settle_every;
  local.terms.followers = shape.followers;
  local.given_again = shape.given_again;
  plan->local_steps = local;
  plan->replicas_max = shape.replicas_max;
  plan->equal_bits_required = shape.equal_bits_required;
  dag::TrainingSpec& training = plan->training;
  training.steps = last_inner_step(local);
  training.batch_size = kLocalBatch;
  training.microbatch_size = kLocalBatch / kLocalMicrobatches;
  training.clip_norm = shape.clip_norm;
  training.on_divergence = shape.on_divergence;
  training.empty_steps = shape.empty_steps;
  training.optimizer.type = dag::OptimizerType::Adam;
  training.schedule.type = dag::ScheduleType::Linear;
  plan->microbatches = kLocalMicrobatches;
  plan->parameter_count = shape.stages;
  plan->borders.checkpoint.steps = shape.checkpoint_steps;
  plan->borders.evaluate_every = shape.evaluate_every;
  plan->forward_microbatches = shape.evaluate_every != 0 ? 3 : 0;
  plan->forward_samples = uint64_t{plan->forward_microbatches} * training.microbatch_size;
  plan->fingerprint = "f";
  plan->predicted_step = std::chrono::milliseconds(100);
  for (uint32_t s = 0; s < shape.stages; ++s)
    for (uint32_t r = 0; r < shape.replicas; ++r) {
      auto stage = std::make_shared<proto::AssignStage>();
      stage->run = 1;
      stage->plan_version = version;
      stage->seat = {s, r};
      stage->stage_count = shape.stages;
      stage->training = training;
      stage->after_step =
          saved == nullptr ? shape.begun_after
                           : broker::InnerSteps(local).find(saved->step, saved->made()).value_or(saved->step);
      stage->skipped_steps = saved != nullptr ? saved->skipped_by(r) + stage->after_step - saved->step : 0;
      stage->local = proto::LocalTerms{
          local, {{s, weight_of(s), owner_of_stage(shape, s), std::vector<uint32_t>(shape.replicas, s)}}};
      for (uint32_t other = 0; other < shape.replicas; ++other)
        if (other != r) stage->links.push_back({.seat = {s, other}});
      const dag::TensorSpec spec{dag::DType::F32, dag::Shape({4})};
      for (const dag::StateKey& key : keys_of(stage->seat, owner_of_stage(shape, s))) {
        proto::TensorReference tensor{key, spec, local_digest(key, 0)};
        bool is_there = is_weight(key.slot);
        for (const auto& kept : saved != nullptr ? saved->tensors : decltype(saved->tensors){})
          if (kept.key == key) {
            tensor = kept;
            is_there = true;
          }
        if (!is_there) continue;
        stage->tensors.push_back(std::move(tensor));
      }
      const bool is_last = s + 1 == shape.stages;
      auto program = make_program(
          proto::ProgramKind::Train,
          {.trained = {{dag::of_initializer(weight_of(s)), spec, {}}}, .losses = is_last ? size_t{1} : 0});
      if (s == 0) program.data_inputs = {"x"};
      stage->programs.push_back(std::move(program));
      if (r == 0 && plan->forward_microbatches != 0)
        stage->programs.push_back(
            make_program(proto::ProgramKind::Evaluate, {.losses = is_last ? size_t{1} : 0}));
      const auto number = static_cast<uint8_t>(plan->stages.size() + 1);
      plan->stages.push_back({{peers.empty() ? key(number) : peers[plan->stages.size()], {s}, 0.001}, stage});
    }
  return plan;
}

// A seat at work. It says what it is told to do as soon as it may.
class LocalSeat {
 public:
  LocalSeat(LocalShape shape, std::shared_ptr<const proto::AssignStage> stage)
      : shape_(std::move(shape)),
        dealt_(deal(shape_)),
        stage_(std::move(stage)),
        completed_(stage_->after_step),
        skipped_(stage_->skipped_steps) {}

  void hear(const proto::Message& message) {
    if (const auto* command = std::get_if<proto::Command>(&message)) {
      if (command->sequence <= last_sequence_) return;
      last_sequence_ = command->sequence;
      if (command->kind == proto::CommandKind::LeaveOut)
        leave_out(*command);
      else if (command->kind != proto::CommandKind::Settle)
        commands_.push_back(*command);
      if (command->kind == proto::CommandKind::Settle || command->kind == proto::CommandKind::LeaveOut)
        settled_ = command->step;
      if (command->kind == proto::CommandKind::Advance) granted_ = command->step;
      std::erase_if(said_, [&](const Said& said) {
        return said.step != 0 ? said.step <= command->committed : said.sequence <= command->settled;
      });
    } else if (const auto* norm = std::get_if<proto::GradientNorm>(&message)) {
      norms_[norm->step] = *norm;
    }
  }
  // The next message. `computed`: how far every other seat has computed.
  std::optional<proto::Message> work(uint64_t computed) {
    if (!answers_.empty()) {
      proto::Message answer = std::move(answers_.front());
      answers_.pop_front();
      return answer;
    }
    while (!commands_.empty()) {
      const proto::Command& command = commands_.front();
      if (command.kind == proto::CommandKind::Advance && completed_ < command.step) return advance(computed);
      const proto::Command done = command;
      commands_.pop_front();
      if (auto message = carry_out(done)) return keep(std::move(*message), 0, done.sequence);
    }
    return std::nullopt;
  }
  // An inner step of which it has its part.
  uint64_t computed() const { return std::max(completed_, computed_); }
  uint64_t completed() const { return completed_; }
  uint64_t last_sequence() const { return last_sequence_; }
  const proto::AssignStage& stage() const { return *stage_; }
  std::vector<proto::Message> said() const {
    std::vector<proto::Message> all;
    for (const Said& said : said_) all.push_back(said.message);
    return all;
  }

 private:
  struct Said {
    uint64_t step = 0, sequence = 0;
    proto::Message message;
  };
  void leave_out(const proto::Command& command) {
    const bool too_late = completed_ >= command.step;
    answers_.push_back(keep(proto::ReplicasLeftOut{.run = stage_->run,
                                                   .plan_version = stage_->plan_version,
                                                   .step = command.step,
                                                   .sequence = command.sequence,
                                                   .too_late = too_late},
                            0, command.sequence));
    if (!too_late) left_out_ = command.left_out;
  }
  proto::Message keep(proto::Message message, uint64_t step, uint64_t sequence) {
    said_.push_back({step, sequence, message});
    return message;
  }
  proto::StepReport report_of(uint64_t inner) const {
    proto::StepReport report{.run = stage_->run, .plan_version = stage_->plan_version, .step = inner};
    const auto step = dealt_.at(inner).steps[stage_->seat.replica];
    if (!step) return report;
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    report.squares = {shape_.bad.contains(*step) ? kNaN : 1.0 + stage_->seat.replica};
    if (stage_->seat.stage + 1 == stage_->stage_count)
      report.losses = {static_cast<double>(*step), static_cast<double>(*step) + 1};
    if (stage_->seat.stage == 0)
      report.sample_positions = {(*step - 1) * kLocalBatch,
                                 (*step - 1) * kLocalBatch + kLocalBatch / kLocalMicrobatches};
    return report;
  }
  std::optional<proto::Message> advance(uint64_t others) {
    const uint64_t inner = completed_ + 1;
    proto::StepReport report = report_of(inner);
    const bool makes = dealt_.at(inner).steps[stage_->seat.replica].has_value();
    if (makes && stage_->training.decides_together()) {
      if (!std::exchange(squares_said_, true)) return keep(report, inner, 0);
      const auto norm = norms_.find(inner);
      if (norm == norms_.end()) return std::nullopt;
      report.squares.clear();
      report.losses.clear();
      report.sample_positions.clear();
    }
    computed_ = inner;
    // Where rounds overlap it has to know that this one is not to be waited for, but only the one before.
    const Dealt& at = dealt_.at(inner);
    const bool waits = at.settles || settled_ == inner;
    if (at.agrees && (waits ? others < inner : granted_ <= inner || others < at.end_before))
      return std::nullopt;
    const auto norm = norms_.find(inner);
    const auto& empty = shape_.empty_steps;
    skipped_ +=
        !makes || (norm != norms_.end() && norm->second.skip) ||
        std::find(empty.begin(), empty.end(), *dealt_.at(inner).steps[stage_->seat.replica]) != empty.end();
    squares_said_ = false;
    completed_ = inner;
    report.updated = true;
    if (at.agrees && stage_->seat.replica == owner_of_stage(shape_, stage_->seat.stage)) {
      const bool was_open = at.end_before > shape_.begun_after && !dealt_.at(at.end_before).settles;
      report.owed.assign((was_open ? 1 : 0) + (waits ? 1 : 0), Digest{});  // of zeros, for each agreement
    }
    return keep(report, inner, 0);
  }
  std::optional<proto::Message> carry_out(const proto::Command& command) const {
    using enum proto::CommandKind;
    if (command.kind == CopyState || command.kind == Checkpoint) {
      const bool has_part = keeps_copy(*stage_, command.stays, command.with_followers);
      return has_part ? std::optional<proto::Message>(snapshot(command.step)) : std::nullopt;
    }
    if (command.kind == CheckMean) return piece(command);
    const bool evaluates = stage_->seat.replica == 0 && stage_->seat.stage + 1 == stage_->stage_count;
    if (command.kind != Evaluate || !evaluates) return std::nullopt;
    return proto::EvaluationReport{.run = stage_->run,
                                   .plan_version = stage_->plan_version,
                                   .step = command.step,
                                   .first_microbatch = command.first_microbatch,
                                   .loss = std::vector<double>(command.microbatches, 0.5)};
  }
  // As test::mean_checks has it.
  std::optional<proto::Message> piece(const proto::Command& command) const {
    if (command.check.tensor != stage_->seat.stage || is_follower(*stage_)) return std::nullopt;
    proto::MeanPiece piece{.run = stage_->run,
                           .plan_version = stage_->plan_version,
                           .step = command.step,
                           .sequence = command.sequence};
    const auto round = round_of(stage_->local->steps, command.check.agreement);
    const std::vector<float> ones(4, 1.0F);
    if (round.steps[stage_->seat.replica] > 0) piece.shown.difference = ones;
    piece.shown.mean = hash_of_piece(std::as_bytes(std::span(kMeanOfTests)));
    if (stage_->seat.replica == owner_of_stage(shape_, stage_->seat.stage)) {
      piece.shown.owed.assign(4, 0.0F);
      piece.shown.heard.assign(shape_.replicas, hash_of_piece(std::as_bytes(std::span(ones))));
    }
    return piece;
  }
  proto::CheckpointReport snapshot(uint64_t step) const {
    proto::CheckpointReport report{.run = stage_->run,
                                   .plan_version = stage_->plan_version,
                                   .step = step,
                                   .tensors = {},
                                   .failure = {},
                                   .skipped_steps = skipped_};
    const uint32_t owner = left_out_.owner_of(owner_of_stage(shape_, stage_->seat.stage));
    for (const dag::StateKey& key : keys_of(stage_->seat, owner))
      report.tensors.push_back({key, stage_->tensors.front().spec, local_digest(key, step)});
    return report;
  }

  std::optional<uint64_t> settled_{};
  uint64_t granted_ = 0;
  LocalShape shape_;
  std::map<uint64_t, Dealt> dealt_;
  std::shared_ptr<const proto::AssignStage> stage_;
  std::deque<proto::Command> commands_;
  std::map<uint64_t, proto::GradientNorm> norms_;
  uint64_t completed_, computed_ = 0, skipped_, last_sequence_ = 0;
  bool squares_said_ = false;
  std::vector<Said> said_;
  std::deque<proto::Message> answers_;
  replicas::LeftOut left_out_;
};

// `lost`: replicas that nobody waits for.
inline uint64_t least_computed(const std::vector<LocalSeat>& seats, const std::set<uint32_t>& lost = {}) {
  uint64_t least = ~uint64_t{0};
  for (const LocalSeat& seat : seats)
    if (!lost.contains(seat.stage().seat.replica)) least = std::min(least, seat.computed());
  return least;
}

}  // namespace weft::test
