// Replicas whose sums of gradients go through a codec, computed by one executor that does one thing after the
// other: each range's sum, encoded and decoded where its owner is another replica, all of them added in
// order, and the step's sum encoded and decoded. To compare a run of seats with.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/pipeline/one_run.h"

namespace weft::pipeline {

class CodedAlone {
 public:
  // `summed`: whose owners count. `of.ranges`: at least two.
  CodedAlone(const Graph& whole, const test::Model& model, peer::Backend& backend,
             const dag::TrainingSpec& spec, const Case& of, const std::vector<proto::AgreedTensor>& summed)
      : whole_(whole),
        model_(model),
        spec_(spec),
        shares_(of.ranges),
        codec_(compress::parse(of.codec).value()),
        executor_(value_or_fail(peer::Executor::create(
            std::make_shared<const Graph>(whole), std::make_shared<peer::State>(backend),
            {.accumulates = true, .optimizer = spec.optimizer, .undoes_statistics = true}))) {
    for (const proto::AgreedTensor& tensor : summed) summed_[tensor.name] = tensor;
    for (const auto& initializer : whole.initializers())
      ok_or_fail(executor_->state().write(weight_key(initializer), model.weights.at(initializer.name)));
    microbatch_ = value_or_fail(executor_->make_microbatch());
  }

  // Its loss: the mean over its microbatches.
  double make_step(uint64_t step) {
    Sums sums(executor_->parameters().size());
    ok_or_fail(executor_->keep_statistics());
    double numbers = 0;
    for (uint32_t m = 0; m < kMicrobatches; ++m) numbers += run(step, m, sums);
    const double loss = numbers / kMicrobatches;
    for (size_t p = 0; p < sums.size(); ++p) put(step, p, sums[p]);
    double sum = 0;
    for (const double square : value_or_fail(executor_->gradient_squares())) sum += square;
    if (const auto statistics = value_or_fail(executor_->begin_statistic_squares()))
      for (const double square : to_doubles(value_or_fail(statistics->take()))) numbers += square;
    if (spec_.on_divergence == dag::OnDivergence::Skip && !std::isfinite(numbers + sum)) {
      ok_or_fail(executor_->undo_statistics());
      ++skipped_;
      return loss;
    }
    const double norm = std::sqrt(sum) / kMicrobatches;
    ok_or_fail(
        executor_->update({.step = step - skipped_,
                           .learning_rate = dag::scheduled_learning_rate(
                               spec_.schedule, spec_.optimizer.learning_rate, step, spec_.steps),
                           .gradient_scale = dag::clip_factor(spec_.clip_norm, norm) / kMicrobatches}));
    return loss;
  }

  State state() const {
    State state;
    for (const dag::StateKey& key : trained_state(whole_, spec_.optimizer))
      state[key] = value_or_fail(executor_->state().read(key));
    return state;
  }
  size_t encoded() const { return encoded_; }  // tensors that were not left dense

 private:
  using Floats = std::vector<float>;
  using Sums = std::vector<std::vector<Floats>>;  // by parameter and range

  uint32_t length() const { return kMicrobatches / spec_.gradient_ranges; }

  double run(uint64_t step, uint32_t m, Sums& sums) {
    const bool begins = m % length() == 0, ends = (m + 1) % length() == 0;
    microbatch_->turn = {.begins_range = begins};
    microbatch_->context = {kSeed, step, m * kMicrobatchSize, kMicrobatchSize};
    for (const auto& [name, tensor] : data_of(whole_, model_, spec_, step, m))
      ok_or_fail(executor_->set_input(*microbatch_, name, tensor));
    ok_or_fail(executor_->run(*microbatch_));
    for (size_t p = 0; ends && p < sums.size(); ++p) {
      const Tensor gradient = value_or_fail(executor_->gradient(p));
      const auto values = gradient.as<float>();
      sums[p].emplace_back(values.begin(), values.end());
    }
    return to_doubles(value_or_fail(
                          executor_->value(*microbatch_, whole_.find_output(dag::OutputRole::Loss)->value)))
        .at(0);
  }

  static void add(Floats& to, const Floats& one) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += one[i];
  }

  // As whoever gets it reads it: of a range, or of the whole step.
  void pass(Floats& values, const proto::AgreedTensor& tensor, uint64_t step, uint32_t range, bool whole,
            uint32_t replica) {
    std::vector<std::byte> payload(compress::wire_bytes(codec_, values.size()));
    if (payload.size() >= values.size() * sizeof(float)) return;
    const compress::Draw draw{.seed = spec_.seed,
                              .step = step,
                              .microbatch = range,
                              .edge = 0xFFFFFFFF - tensor.number,
                              .backward = whole,
                              .replica = static_cast<uint16_t>(replica)};
    const auto size = compress::encode(codec_, values, draw, payload, scratch_);
    if (!size) return;  // not finite: it goes as it is
    ok_or_fail(compress::decode(codec_, draw, std::span(payload).first(*size), values));
    ++encoded_;
  }

  void put(uint64_t step, size_t parameter, const std::vector<Floats>& ranges) {
    const auto& [name, spec] = executor_->parameters()[parameter];
    const proto::AgreedTensor& tensor = summed_.at(name);
    Floats all;
    uint32_t first = 0;
    for (uint32_t replica = 0; replica < shares_.size(); first += shares_[replica++])
      for (uint32_t range = first; range < first + shares_[replica]; ++range) {
        Floats sum = ranges[range];
        // What begins with the first range is one sum.
        if (replica == 0)
          for (; range + 1 < shares_[0]; ++range) add(sum, ranges[range + 1]);
        if (replica != tensor.owner) pass(sum, tensor, step, replica == 0 ? 0 : range, false, replica);
        if (all.empty())
          all = sum;
        else
          add(all, sum);
      }
    pass(all, tensor, step, 0, true, tensor.owner);
    ok_or_fail(executor_->state().backend().upload(Tensor(spec, std::as_bytes(std::span(all))),
                                                   executor_->gradient_place(parameter).view,
                                                   dag::Layout::Plain));
  }

  const Graph& whole_;
  const test::Model& model_;
  const dag::TrainingSpec spec_;
  const std::vector<uint32_t> shares_;
  const compress::Codec codec_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
  std::map<std::string, proto::AgreedTensor> summed_;
  compress::Scratch scratch_;
  size_t encoded_ = 0;
  uint64_t skipped_ = 0;
};

}  // namespace weft::pipeline
