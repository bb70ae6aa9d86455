// Files of named tensors as the library safetensors writes them: eight bytes that say how long the header is,
// the header as JSON, and the tensors' bytes, one after the other. A large model lies in several such files,
// with an index beside them that says which tensor is in which. GGUF files (data/gguf.h) are read as well.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "data/file.h"
#include "data/gguf.h"
#include "data/npz_writer.h"

namespace weft::data {

// Beyond that a file is refused before memory is taken: what a header costs stays below 64 MB and 100 ms.
inline constexpr uint64_t kTensorHeaderMax = uint64_t{4} << 20;  // bytes
inline constexpr uint64_t kTensorIndexMax = uint64_t{16} << 20;  // bytes
inline constexpr size_t kNamedTensorsMax = size_t{1} << 17;      // of a file, or of an index
inline constexpr size_t kTensorFilesMax = 512;                   // that an index names

struct NamedSpec {
  std::string name;
  dag::TensorSpec spec;
  bool operator==(const NamedSpec&) const = default;
};

struct PlacedTensor : NamedSpec {
  uint64_t offset = 0;  // of its bytes, behind the header
};

// Reads the JSON of a header. `size`: the bytes behind it, which the tensors cover without gap or overlap.
// In the order of their bytes. Errors, which name the tensor and no file: Corrupted; Unsupported for an
// element type that weft has not; ResourceExhausted beyond the bounds above.
Result<std::vector<PlacedTensor>> parse_tensor_header(std::string_view json, uint64_t size);

// Reads the JSON of an index: the file of each tensor, which is a plain name of a .safetensors file. Errors:
// as above; PermissionDenied for a name that leads elsewhere.
Result<std::map<std::string, std::string>> parse_tensor_index(std::string_view json);

// One file, or all files of an index. Any number of threads may read it at once.
class TensorFiles {
 public:
  // Reads headers alone; the files stay open. An index is known by its name, *.json, and its files lie beside
  // it and hold the tensors that it says, and no others. A GGUF file is known by its first letters; numbers
  // in blocks are read as F32. Errors name the file: as above, and what File and read_gguf say; Unsupported
  // for a tensor of a type that weft has not.
  static Result<TensorFiles> open(const std::filesystem::path& path);

  struct Place {
    dag::TensorSpec spec;
    size_t file = 0;      // of paths()
    uint64_t offset = 0;  // in it
    Packing packing = Packing::None;
  };
  const std::map<std::string, Place, std::less<>>& tensors() const { return tensors_; }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }  // of the tensors' files

  // Hands on the bytes of one, in pieces of at most 1 MiB and in order. REQUIRES: it is there.
  Status read(std::string_view name, const ByteSink& sink) const;
  // The whole tensor. ResourceExhausted where the machine has not the memory. REQUIRES: it is there.
  Result<dag::Tensor> whole(std::string_view name) const;

 private:
  Status add_file(const std::filesystem::path& path);
  Status add(const File& file, std::string name, Place place);

  std::vector<std::shared_ptr<const File>> files_;
  std::vector<std::filesystem::path> paths_;
  std::map<std::string, Place, std::less<>> tensors_;
};

// Writes such a file as that library does, so that equal tensors give equal bytes: the widest elements first,
// then by name, the header filled with spaces to a multiple of eight. `read` hands on the bytes of one, in
// order; it is asked for each once. Errors: InvalidArgument for a name that is empty, repeated, no UTF-8 or
// "__metadata__"; Corrupted where `read` gives another number of bytes; what `read` and the sink say.
Status write_safetensors(std::vector<NamedSpec> tensors,
                         const std::function<Status(const std::string& name, const ByteSink& sink)>& read,
                         const ByteSink& sink);

}  // namespace weft::data
