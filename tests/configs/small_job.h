// A job of few lines, for tests to change.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "configs/job.h"

namespace weft::configs {

inline const std::string kSmall = R"(model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
data:
  train: {type: npz, path: train.npz}
batch_size: 64
steps: 500
optimizer: {type: sgd, learning_rate: 0.1}
)";

inline Result<Job> parse_text(const std::string& text, const std::vector<std::string>& sets = {}) {
  return parse_job(text, sets, {.source = "job.yaml", .folder = "dir", .check_files = false});
}
inline Job job_of(const std::string& text, const std::vector<std::string>& sets = {}) {
  auto job = parse_text(text, sets);
  EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
  return job.value_or(Job{});
}

}  // namespace weft::configs
