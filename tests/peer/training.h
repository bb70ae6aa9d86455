// Some steps of training on any backend, for tests that compare bits or take the backend away.
#pragma once

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "peer/executor.h"
#include "tests/peer/stage_runner.h"
#include "tests/support/models.h"

namespace weft::peer {

inline constexpr uint32_t kMicrobatches = 3, kArenas = 2;
inline constexpr uint64_t kSteps = 4;

inline test::Model model_of(std::string_view name) {
  if (name == "rounded") return test::with_rounded_parameters(test::transformer(5));
  return name == "residual" ? test::residual_net(5) : test::transformer(5);
}

// Some steps of AdamW, microbatches in two arenas by turns; nothing is waited for between the steps.
class Training {
 public:
  Training(const test::Model& model, Backend& backend, uint32_t ranges = 1) : model_(model), ranges_(ranges) {
    const Graph graph = dag::lower(value_or_fail(dag::differentiate(model.graph, dag::op_table())),
                                   dag::op_table(), {.fuse_elementwise = true});
    executor_ =
        value_or_fail(Executor::create(std::make_shared<const Graph>(graph), std::make_shared<State>(backend),
                                       {.accumulates = true,
                                        .sums_ranges = ranges > 1,
                                        .optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::AdamW}}));
    for (const auto& [name, tensor] : model.weights)
      ok_or_fail(executor_->state().write(dag::of_initializer(name), tensor));
    for (uint32_t i = 0; i < kArenas; ++i) arenas_.push_back(value_or_fail(executor_->make_microbatch()));
  }

  std::vector<std::vector<double>> run() {
    std::vector<std::unique_ptr<Download>> downloads;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (uint32_t m = 0; m < kMicrobatches; ++m) {
        MicrobatchMemory& microbatch = *arenas_[m % kArenas];
        microbatch.turn = dag::gradient_turn(m, kMicrobatches, ranges_);
        microbatch.context = {.seed = 9, .step = step, .sample_position = m * 4, .microbatch_size = 4};
        for (const auto& [name, tensor] : model_.inputs)
          ok_or_fail(executor_->set_input(microbatch, name, data(tensor, step, m)));
        ok_or_fail(executor_->run(microbatch));
        downloads.push_back(value_or_fail(
            executor_->begin_value(microbatch, executor_->graph().find_output(OutputRole::Loss)->value)));
      }
      downloads.push_back(value_or_fail(executor_->begin_gradient_squares()));
      ok_or_fail(executor_->update({.step = step, .learning_rate = 0.01, .gradient_scale = 0.25}));
    }
    for (const dag::StateKey& key : trained_state(executor_->graph(), {.type = dag::OptimizerType::AdamW}))
      downloads.push_back(value_or_fail(executor_->state().begin_read(key)));
    std::vector<std::vector<double>> results;
    for (auto& download : downloads) results.push_back(to_doubles(value_or_fail(download->take())));
    return results;
  }

  Executor& executor() { return *executor_; }

 private:
  static Tensor data(const Tensor& tensor, uint64_t step, uint32_t m) {
    return is_float(tensor.dtype()) ? test::random_tensor(step, m, tensor.shape()) : tensor;
  }
  const test::Model& model_;
  const uint32_t ranges_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::unique_ptr<MicrobatchMemory>> arenas_;
};

}  // namespace weft::peer
