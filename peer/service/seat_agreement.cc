#include "peer/service/seat_agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"

namespace weft::peer {

using dag::StateKey;
using dag::StateSlot;
using dag::Tensor;
using replicas::OuterRound;

namespace {

StateKey key_of(const StateKey& weight, StateSlot slot, uint32_t replica = 0) {
  return {.owner = weight.owner, .name = weight.name, .slot = slot, .replica = replica};
}

Tensor tensor_of(const dag::TensorSpec& spec, std::span<const float> values) {
  return Tensor(spec, std::as_bytes(values));
}

}  // namespace

Result<std::unique_ptr<SeatAgreement>> SeatAgreement::create(
    std::shared_ptr<const proto::AssignStage> assignment, State& state, const Kept& kept) {
  std::unique_ptr<SeatAgreement> made(new SeatAgreement(std::move(assignment), state));
  const uint32_t replica = made->assignment_->seat.replica;
  const replicas::ReplicaTerms& terms = made->local().terms;
  for (AgreedWeight& weight : agreed_weights(*made->assignment_)) {
    if (weight.spec.dtype != dag::DType::F32)
      return fail(ErrorCode::Unsupported,
                  "'" + weight.key.name + "' is no float32, and replicas agree about that alone");
    WEFT_TRY(const Tensor agreed, state.read(weight.key));
    const auto values = agreed.as<float>();
    Held held{.weight = std::move(weight), .agreed = {values.begin(), values.end()}};
    const bool is_trained = !held.weight.is_statistic;
    const bool owes = is_trained && terms.codec.kind != compress::Kind::Dense;
    const struct {
      std::vector<float>& values;
      StateKey key;
      bool has;
    } rest[] = {{held.momentum, key_of(held.weight.key, StateSlot::OuterMomentum),
                 is_trained && terms.outer.type == replicas::OuterType::Nesterov},
                {held.residue, key_of(held.weight.key, StateSlot::Residue, replica), owes},
                {held.return_residue, key_of(held.weight.key, StateSlot::ReturnResidue),
                 owes && held.weight.is_ours}};
    for (const auto& each : rest) {
      if (!each.has) continue;
      each.values.resize(values.size());
      const auto at = kept.find(each.key);
      if (at == kept.end()) continue;
      if (at->second.spec() != held.weight.spec)
        return fail(ErrorCode::InvalidArgument, "'" + to_string(each.key) + "' has another shape");
      std::ranges::copy(at->second.as<float>(), each.values.begin());
    }
    made->held_.push_back(std::move(held));
  }
  return made;
}

OuterRound SeatAgreement::round(uint64_t step) const {
  const OuterRound round = round_of(local(), step);
  return left_out_ ? replicas::leave_out(round, left_out_->replicas).round : round;
}

uint32_t SeatAgreement::owner_of(const Held& held) const {
  const uint32_t planned = held.weight.tensor->owner;
  return left_out_ ? left_out_->owner_of(planned) : planned;
}

SeatAgreement::Held* SeatAgreement::find(uint32_t number) {
  const auto at = std::lower_bound(held_.begin(), held_.end(), number, [](const Held& held, uint32_t sought) {
    return held.weight.tensor->number < sought;
  });
  return at == held_.end() || at->weight.tensor->number != number ? nullptr : &*at;
}

tl::unexpected<Error> SeatAgreement::diverged(const Held& held, const char* what) {
  not_finite_ = held.weight.key;
  return fail(ErrorCode::OutOfRange,
              std::string(what) + " of '" + to_string(held.weight.key) + "' is not finite");
}

// `values` are then what is read of it.
Result<Tensor> SeatAgreement::payload_of(Held& held, uint64_t before, bool is_mean,
                                         std::vector<float>& values) {
  const uint32_t number = held.weight.tensor->number;
  const compress::Codec codec = held.weight.codec(*assignment_);
  const auto from = is_mean ? replicas::kOwner : static_cast<uint16_t>(assignment_->seat.replica);
  const auto size =
      replicas::pass_through(codec, replicas::draw_of(assignment_->training.seed, before, number, from),
                             values, is_mean ? held.return_residue : held.residue, scratch_);
  if (!size) return diverged(held, is_mean ? "the mean" : "the difference");
  if (codec.kind == compress::Kind::Dense) return tensor_of(held.weight.spec, values);
  const auto payload = std::span(scratch_.payload).first(*size);
  const dag::TensorSpec spec{dag::DType::U8, {static_cast<int64_t>(*size)}};
  return Tensor(spec, payload);
}

SentShare SeatAgreement::share(const Held& held, uint64_t before, bool is_mean, uint32_t to,
                               Tensor payload) const {
  const proto::AgreedTensor& tensor = *held.weight.tensor;
  return {.to = {tensor.stages[to], to},
          .header = {.run = assignment_->run,
                     .plan_version = assignment_->plan_version,
                     .step = before,
                     .microbatch = 0,
                     .edge = tensor.number,
                     .program = proto::ProgramKind::Agree,
                     .direction = is_mean ? proto::Direction::Backward : proto::Direction::Forward,
                     .replica = static_cast<uint16_t>(assignment_->seat.replica),
                     .spec = held.weight.spec,
                     .codec = held.weight.codec(*assignment_)},
          .payload = std::move(payload)};
}

Result<std::vector<SentShare>> SeatAgreement::differ(uint64_t step) {
  const OuterRound now = round(step);
  std::vector<SentShare> sent;
  const bool is_again = std::exchange(differed_, step) == step;
  if (now.steps[assignment_->seat.replica] == 0) return sent;
  if (is_again) return send_again(now.steps_before);
  for (Held& held : held_) {
    WEFT_TRY(const Tensor weights, state_.read(held.weight.key));
    const auto values = weights.as<float>();
    held.own.assign(values.begin(), values.end());
    if (!held.weight.is_statistic) {
      const std::vector<float>& begun = held.start.empty() ? held.agreed : held.start;
      for (size_t i = 0; i < held.own.size(); ++i) held.own[i] -= begun[i];
    }
    WEFT_TRY(Tensor payload, payload_of(held, now.steps_before, false, held.own));
    if (now.overlaps && !is_late_) WEFT_TRY_STATUS(go_on(held));
    if (is_ours(held)) continue;
    held.sent_to = owner_of(held);
    sent.push_back(share(held, now.steps_before, false, held.sent_to, payload));
    if (!now.overlaps) held.sent = std::move(payload);
    if (!now.overlaps || !is_late_) held.own = {};
  }
  is_late_ = is_late_ || now.overlaps;
  return sent;
}

Result<std::vector<SentShare>> SeatAgreement::send_again(uint64_t before) {
  std::vector<SentShare> sent;
  for (Held& held : held_) {
    if (!held.sent || held.sent_to == owner_of(held)) continue;
    held.sent_to = owner_of(held);
    if (is_ours(held))
      WEFT_TRY_STATUS(read_own(held, before));
    else
      sent.push_back(share(held, before, false, held.sent_to, *held.sent));
  }
  return sent;
}

// What this seat has sent, as whoever has it reads it.
Status SeatAgreement::read_own(Held& held, uint64_t before) {
  const compress::Codec codec = held.weight.codec(*assignment_);
  held.own.resize(held.agreed.size());
  if (codec.kind == compress::Kind::Dense) {
    std::ranges::copy(held.sent->as<float>(), held.own.begin());
  } else {
    const auto draw = replicas::draw_of(assignment_->training.seed, before, held.weight.tensor->number,
                                        static_cast<uint16_t>(assignment_->seat.replica));
    WEFT_TRY_STATUS(compress::decode(codec, draw, held.sent->bytes(), held.own));
  }
  held.sent.reset();
  return {};
}

std::optional<replicas::Outlier> SeatAgreement::find_outlier(const OuterRound& now,
                                                             const std::vector<AgreedShare>& differences) {
  const double bound = assignment_->local->norm_bound;
  if (bound <= 0) return std::nullopt;
  const uint32_t own = assignment_->seat.replica;
  std::vector<double> squares(now.steps.size(), 0);
  const auto add = [&](uint32_t replica, std::span<const float> values) {
    double sum = 0;
    for (const float value : values) sum += static_cast<double>(value) * value;
    squares[replica] += sum;
  };
  bool adds_up = false;
  for (const Held& held : held_) {
    if (!is_ours(held) || held.weight.is_statistic) continue;
    adds_up = true;
    add(own, held.own);
  }
  if (!adds_up) return std::nullopt;
  for (const AgreedShare& one : differences)
    if (const Held* held = find(one.number);
        held != nullptr && is_ours(*held) && !held->weight.is_statistic && now.steps[one.replica] > 0)
      add(one.replica, one.tensor.as<float>());
  std::vector<std::optional<double>> norms(now.steps.size());
  for (uint32_t replica = 0; replica < norms.size(); ++replica)
    if (now.steps[replica] > 0)
      norms[replica] = std::sqrt(squares[replica]) / static_cast<double>(now.steps[replica]);
  return guard_.look_at(norms, own, bound);
}

Result<SeatAgreement::Means> SeatAgreement::take_means(uint64_t step, std::vector<AgreedShare> differences) {
  const OuterRound now = round(step);
  std::move(kept_.begin(), kept_.end(), std::back_inserter(differences));
  kept_.clear();
  if (const auto outlier = find_outlier(now, differences)) {
    kept_ = std::move(differences);
    return Means{.refused = outlier};
  }
  std::map<std::pair<uint32_t, uint32_t>, const Tensor*> came;
  for (const AgreedShare& one : differences) came[{one.number, one.replica}] = &one.tensor;
  Means means;
  for (Held& held : held_) {
    if (!is_ours(held)) continue;
    if (left_out_ && !held.weight.is_statistic && local().terms.codec.kind != compress::Kind::Dense)
      held.return_residue.assign(held.agreed.size(), 0.0F);
    const uint32_t number = held.weight.tensor->number;
    replicas::Mean mean(held.agreed.size());
    for (uint32_t replica = 0; replica < now.steps.size(); ++replica) {
      const uint64_t samples = now.steps[replica] * assignment_->training.batch_size;
      if (samples == 0) continue;
      if (replica == assignment_->seat.replica)
        mean.add(held.own, samples);
      else
        mean.add(came.at({number, replica})->as<float>(), samples);
    }
    held.own = {};
    held.mean.resize(held.agreed.size());
    mean.take(held.mean);
    WEFT_TRY(const Tensor payload, payload_of(held, now.steps_before, true, held.mean));
    for (uint32_t replica = 0; replica < now.steps.size(); ++replica)
      if (replica != assignment_->seat.replica && !(left_out_ && left_out_->has(replica)))
        means.sent.push_back(share(held, now.steps_before, true, replica, payload));
  }
  return means;
}

// Until the mean of its difference is there. Running statistics are what the replica has seen last.
Status SeatAgreement::go_on(Held& held) {
  if (held.weight.is_statistic) return {};
  held.start.resize(held.agreed.size());
  replicas::look_ahead(local().terms.outer, held.own, held.momentum, held.agreed, held.start);
  return state_.write(held.weight.key, tensor_of(held.weight.spec, held.start));
}

Status SeatAgreement::agree(uint64_t step, const std::vector<AgreedShare>& means) {
  for (const AgreedShare& one : means) {
    Held& held = *find(one.number);
    if (one.replica != owner_of(held)) continue;
    const auto values = one.tensor.as<float>();
    held.mean.assign(values.begin(), values.end());
  }
  const bool is_late = round(step).overlaps;  // after the round that follows it
  is_late_ = is_late && round(differed_.value()).overlaps;
  if (!is_late) differed_.reset();
  for (Held& held : held_) {
    if (!is_late) held.sent.reset();
    WEFT_CHECK(held.mean.size() == held.agreed.size());
    if (held.weight.is_statistic)
      held.agreed = std::move(held.mean);
    else
      replicas::take_outer_step(local().terms.outer, held.mean, held.momentum, held.agreed);
    held.mean = {};
    if (is_late_) WEFT_TRY_STATUS(go_on(held));
    if (is_late && !is_ours(held)) held.own = {};
    if (is_late) continue;
    held.start = {};
    WEFT_TRY_STATUS(state_.write(held.weight.key, tensor_of(held.weight.spec, held.agreed)));
  }
  return {};
}

std::vector<std::pair<StateKey, Tensor>> SeatAgreement::tensors() const {
  std::vector<std::pair<StateKey, Tensor>> tensors;
  for (const Held& held : held_) {
    const auto put = [&](StateSlot slot, uint32_t replica, const std::vector<float>& values) {
      if (!values.empty())
        tensors.emplace_back(key_of(held.weight.key, slot, replica), tensor_of(held.weight.spec, values));
    };
    put(StateSlot::OuterMomentum, 0, held.momentum);
    put(StateSlot::Residue, assignment_->seat.replica, held.residue);
    put(StateSlot::ReturnResidue, 0, held.return_residue);
  }
  return tensors;
}

Bytes SeatAgreement::bytes() const {
  size_t numbers = 0;
  for (const Held& held : held_)
    numbers += held.agreed.size() * (local().terms.overlap() && !held.weight.is_statistic ? 2 : 1) +
               held.momentum.size() + held.residue.size() + held.return_residue.size();
  return {static_cast<int64_t>(numbers * sizeof(float))};
}

}  // namespace weft::peer
