// The models of the wide-area bench as training graphs of one microbatch, built by hand, without weights:
// GPT-2 as published (tied embedding, no dropout) and ResNet-101 as torchvision has it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/lower.h"

namespace weft::bench {

struct Model {
  std::string name;        // "gpt2-small"
  int64_t parameters = 0;  // that are trained: checked against the published figure
  uint32_t microbatch_size = 1, microbatches = 1;
  uint32_t optimizer_slots = 2;                   // adamw
  std::optional<uint32_t> stages{};               // of a job that asks for so many
  dag::Graph graph{};                             // of a microbatch, with its backward phase
  std::shared_ptr<const dag::Lowered> lowered{};  // as the catalogue's devices run it

  uint32_t samples() const { return microbatch_size * microbatches; }
};

// 1,024 tokens a sample, 128 samples a step, one a microbatch.
Model gpt2_small(uint32_t microbatches = 128);
Model gpt2_xl(uint32_t microbatches = 128);
// 224 x 224 images, 256 a step, four a microbatch.
Model resnet101(uint32_t microbatches = 64);
// That of a job file, as `weft plan` reads it. Errors: its own.
Result<Model> model_of_job(const std::filesystem::path& path, std::span<const std::string> sets);

}  // namespace weft::bench
