// An ONNX file that has been read, bounded and taken apart: its structure (kept as ONNX wrote it, for writing
// it back) and its weights by name. What the structure means is for dag/onnx/import.h to say.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/onnx/limits.h"

namespace weft::onnx {

class OnnxModel {
 public:
  struct Structure;  // the parsed file, dag/onnx/structure.h
  struct Learnt;     // by who had the bytes, dag/onnx/roles.h

  explicit OnnxModel(std::shared_ptr<const Structure> structure,
                     std::shared_ptr<const Learnt> learnt = nullptr)
      : structure_(std::move(structure)), learnt_(std::move(learnt)) {}

  // Every initializer of the file, and every float tensor of a Constant node of its graph, by name. Of one
  // that was not read, zeros that take no memory: no more than its spec is to be believed.
  const dag::Weights& weights() const;
  bool is_read(std::string_view initializer) const;
  // Where the bytes of an initializer lie that was not read; nothing where they were not found.
  struct Place {
    std::string location;  // of external data, as the model writes it; empty: the model's own file
    int64_t offset = 0, size = 0;
  };
  std::optional<Place> place_of(std::string_view initializer) const;
  // The bytes of an initializer, read or not, in pieces and in order; an error of `visit` ends it. NotFound
  // where they were not found. REQUIRES: the model has it.
  Status read_weight(std::string_view initializer,
                     const std::function<Status(std::span<const std::byte>)>& visit) const;
  // It in memory. The same errors, and Corrupted where there are fewer bytes. REQUIRES: the model has it.
  Result<dag::Tensor> read_whole(std::string_view initializer) const;
  const Structure& structure() const { return *structure_; }
  const Learnt* learnt() const { return learnt_.get(); }  // nullptr: nothing
  OnnxModel with(Learnt learnt) const;
  // The same with other values of weights, and nothing learnt of any. REQUIRES: it has each, with that spec.
  OnnxModel with_weights(dag::Weights values) const;

  int64_t opset() const;  // of the standard domain
  std::string producer() const;
  bool has_external_data() const;

  struct Port {
    std::string name;
    std::string dtype;  // as weft names it; or "sequence", "optional", ... for what is not a tensor
    std::vector<std::string> dims;  // a number, a symbol, or "?" when the file says nothing, or -1
    bool has_shape = false;
  };
  std::vector<Port> inputs() const;  // without the initializers that old files list among them
  std::vector<Port> outputs() const;

 private:
  std::shared_ptr<const Structure> structure_;
  std::shared_ptr<const Learnt> learnt_;
};

// Reads a model. External data is read from regular files beneath the model's folder: no absolute path, no
// "..", no symbolic or hard link, offset and length inside the file. Nothing else is opened. Errors:
// NotFound, PermissionDenied (paths and links), Corrupted (bytes, sizes, names), ResourceExhausted (limits),
// Unsupported (strings, sparse tensors, types of less than a byte).
Result<OnnxModel> read_model(const std::filesystem::path& path, const ImportLimits& limits = {});

// The same from memory, for models that came from someone else: external data is refused with
// PermissionDenied.
Result<OnnxModel> read_model(std::span<const std::byte> bytes, const ImportLimits& limits = {});

}  // namespace weft::onnx
