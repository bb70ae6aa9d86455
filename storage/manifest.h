// What a checkpoint consists of, as the JSON file that names its blobs. docs: SPEC "Models, weights,
// checkpoints".
//   {"kind": "weft-checkpoint", "format": 1, "sequence": 7, "run": "...", "step": 120, "data_position": 7680,
//    "graph": "<sha-256>", "numerics": "...", "learning_rate": 0.1, "settings": {"seed": "0", ...},
//    "tensors": [{"initializer": "conv.weight", "slot": "value", "dtype": "f32", "shape": [8, 3, 3, 3],
//    "sha256": "..."}]}
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/state.h"
#include "dag/tensor.h"

namespace weft::storage {

inline constexpr uint64_t kManifestFormat = 4;  // the newest that is read
// What a manifest has decides of which format it is: "replica_updates" and tensors' "replica" of format 4,
// else "settings" and "learning_rate" of format 3, else "skipped_steps", where there are any, of format 2,
// else of format 1.
inline constexpr uint64_t kManifestFormatOfSkippedSteps = 2;
inline constexpr uint64_t kManifestFormatOfSettings = 3;
inline constexpr uint64_t kManifestFormatOfReplicas = 4;
inline constexpr uint64_t kManifestReplicasMax = 1024;
inline constexpr size_t kManifestSettingsMax = 1000;
inline constexpr uint64_t kManifestSizeMax = uint64_t{8} << 20;  // bytes
inline constexpr uint64_t kManifestTensorsMax = 40000;

struct TensorRecord {
  dag::StateKey key;  // of an initializer
  dag::TensorSpec spec;
  std::string sha256;
  bool operator==(const TensorRecord&) const = default;
};

// What a run was made with beside its graph, so that whoever goes on from it is told what differs.
struct RunSettings {
  std::map<std::string, std::string> values;  // by the key of the job file
  double learning_rate = 0;                   // of the last step; finite
  bool operator==(const RunSettings&) const = default;
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
  std::optional<RunSettings> settings{};  // none: an older weft wrote it
  // Of replicas with local steps: by replica, how many updates its optimizer has made. Empty: there are none.
  std::vector<uint64_t> replica_updates{};
  bool operator==(const Manifest&) const = default;
};

std::string manifest_json(const Manifest& manifest);

// Checks every field and bound before it is used; the memory taken is bounded by the size of the text.
// Corrupted; VersionMismatch for another format; ResourceExhausted beyond a limit. Messages do not name the
// file.
Result<Manifest> parse_manifest(std::string_view text);

}  // namespace weft::storage
