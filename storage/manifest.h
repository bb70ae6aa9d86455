// What a checkpoint consists of, as the JSON file that names its blobs. docs: SPEC "Models, weights,
// checkpoints".
//   {"kind": "weft-checkpoint", "format": 1, "sequence": 7, "run": "...", "step": 120, "data_position": 7680,
//    "graph": "<sha-256>", "numerics": "...",
//    "tensors": [{"initializer": "conv.weight", "slot": "value", "dtype": "f32", "shape": [8, 3, 3, 3],
//    "sha256": "..."}]}
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/state.h"
#include "dag/tensor.h"

namespace weft::storage {

inline constexpr uint64_t kManifestFormat = 2;  // the newest that is read
// "skipped_steps": a manifest that has any is of format 2, others of format 1.
inline constexpr uint64_t kManifestFormatOfSkippedSteps = 2;
inline constexpr uint64_t kManifestSizeMax = uint64_t{8} << 20;  // bytes
inline constexpr uint64_t kManifestTensorsMax = 40000;

struct TensorRecord {
  dag::StateKey key;  // of an initializer
  dag::TensorSpec spec;
  std::string sha256;
  bool operator==(const TensorRecord&) const = default;
};

struct Manifest {
  uint64_t sequence = 0;              // counts the checkpoints written to a folder, whatever run they are of
  std::string run;                    // which run; not empty
  uint64_t step = 0;                  // the last step that is contained
  uint64_t skipped_steps = 0;         // of those up to `step`: without an update
  uint64_t data_position = 0;         // how many samples of the endless sequence were taken
  std::string graph_hash;             // of the training graph without tensors
  std::string numerics;               // the numerics fingerprint of what computed it
  std::vector<TensorRecord> tensors;  // by key, each once
  bool operator==(const Manifest&) const = default;
};

std::string manifest_json(const Manifest& manifest);

// Checks every field and bound before it is used; the memory taken is bounded by the size of the text.
// Corrupted; VersionMismatch for another format; ResourceExhausted beyond a limit. Messages do not name the
// file.
Result<Manifest> parse_manifest(std::string_view text);

}  // namespace weft::storage
