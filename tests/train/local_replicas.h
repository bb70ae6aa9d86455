// Runs of replicas with local steps on one machine, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "configs/job.h"
#include "dag/onnx/model.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/trainer.h"

namespace weft::test {

inline std::unique_ptr<peer::Backend> one_cpu(int threads = 1) {
  auto backend = peer::make_cpu_backend({.threads = threads, .pin = false});
  if (!backend) ADD_FAILURE() << backend.error().message;
  return std::move(*backend);
}

inline constexpr const char* kSgd = "optimizer={type: sgd, learning_rate: 0.05}";
inline constexpr const char* kCompressed = "sync={every: 3, codec: \"topk:0.05:int4\"}";
inline constexpr const char* kOverlapping =
    "sync={every: 2, codec: \"topk:0.1:int8\", overlap: true, settle_every: 3}";
inline constexpr const char* kFragments =
    "sync={every: 4, codec: \"topk:0.1:int8\", overlap: true, settle_every: 3, fragments: 2}";
inline constexpr const char* kShares = "sync={every: 4, shares: [2, 4], codec: \"topk:0.1:int8\"}";

class LocalReplicas : public testing::Test {
 protected:
  configs::Job job(const std::string& name, std::vector<std::string> sets, const std::string& output) {
    const auto folder = scratch_.folder() / name;
    if (!std::filesystem::exists(folder)) {
      std::filesystem::create_directories(folder);
      unpack_case(name, folder);
    }
    sets.push_back("output=" + (scratch_.folder() / output).string());
    auto loaded = configs::load_job(folder / "job.yaml", sets);
    if (!loaded) throw std::runtime_error(loaded.error().message);  // ends this test, not the others
    return std::move(*loaded);
  }
  struct Run {
    std::string bytes;  // of the trained file; empty: it was stopped
    std::vector<train::AgreementEvent> agreements;
    std::vector<train::StepEvent> steps;
    std::vector<std::string> warnings;
    std::vector<uint64_t> checkpoints;  // after which steps
  };
  // `stop_in`: the step in which it is asked to stop; 0: never.
  static Run run(const configs::Job& job, train::TrainOptions options = {}, uint64_t stop_in = 0,
                 int threads = 1) {
    Run run;
    std::atomic<bool> stop{false};
    options.stop = &stop;
    const auto backend = one_cpu(threads);
    const auto result = train::train(job, *backend, options, [&](const train::Event& event) {
      if (const auto* agreed = std::get_if<train::AgreementEvent>(&event)) run.agreements.push_back(*agreed);
      if (const auto* kept = std::get_if<train::CheckpointEvent>(&event))
        run.checkpoints.push_back(kept->after_step);
      if (const auto* start = std::get_if<train::StartEvent>(&event)) run.warnings = start->warnings;
      if (const auto* step = std::get_if<train::StepEvent>(&event)) {
        run.steps.push_back(*step);
        if (step->step == stop_in) stop = true;
      }
    });
    if (!result) {
      ADD_FAILURE() << result.error().message;
    } else {
      EXPECT_TRUE(result->diverged.empty()) << result->diverged;
      if (!result->stopped) run.bytes = read_file(result->output);
    }
    return run;
  }
  // The largest difference of two trained files, over the largest number of the tensor that it is in.
  static double difference(const configs::Job& a, const configs::Job& b) {
    const auto one = onnx::read_model(a.output), other = onnx::read_model(b.output);
    if (!one || !other) throw std::runtime_error("a trained file is not there");
    double worst = 0;
    for (const auto& [name, tensor] : one->weights()) {
      if (!is_float(tensor.dtype())) continue;
      const std::vector<double> x = to_doubles(tensor), y = to_doubles(other->weights().at(name));
      double apart = 0, largest = 1e-3;
      for (size_t i = 0; i < x.size(); ++i) {
        apart = std::max(apart, std::abs(x[i] - y[i]));
        largest = std::max(largest, std::abs(x[i]));
      }
      worst = std::max(worst, apart / largest);
    }
    return worst;
  }

  test::Scratch scratch_;
};

}  // namespace weft::test
