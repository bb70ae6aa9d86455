#include "data/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/printable.h"
#include "data/safetensors_types.h"

namespace weft::data {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kLengthSize = 8;  // bytes in front of the header
constexpr uint64_t kPieceMax = uint64_t{1} << 20;
constexpr std::string_view kMetadata = "__metadata__";

struct TypeRow {
  std::string_view name;
  dag::DType dtype;
};
// In the order that the library gives them.
constexpr std::array<TypeRow, 13> kTypes{{{"BOOL", dag::DType::Bool},
                                          {"U8", dag::DType::U8},
                                          {"I8", dag::DType::I8},
                                          {"I16", dag::DType::I16},
                                          {"U16", dag::DType::U16},
                                          {"F16", dag::DType::F16},
                                          {"BF16", dag::DType::BF16},
                                          {"I32", dag::DType::I32},
                                          {"U32", dag::DType::U32},
                                          {"F32", dag::DType::F32},
                                          {"F64", dag::DType::F64},
                                          {"I64", dag::DType::I64},
                                          {"U64", dag::DType::U64}}};

const TypeRow& row_of(dag::DType dtype) {
  const auto at =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& row) { return row.dtype == dtype; });
  WEFT_CHECK(at != kTypes.end());
  return *at;
}

Result<std::string> read_text_at(const File& file, uint64_t offset, uint64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  WEFT_TRY_STATUS(file.read_at(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

struct Header {
  std::vector<PlacedTensor> tensors;
  uint64_t begin = 0;  // of the bytes behind it, in the file
};
Result<Header> read_header(const File& file) {
  std::array<std::byte, kLengthSize> bytes{};
  if (file.size() < bytes.size())
    return file.error(ErrorCode::Corrupted, "is too short for a file of tensors (safetensors)");
  WEFT_TRY_STATUS(file.read_at(0, bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < bytes.size(); ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (length > file.size() - kLengthSize)
    return file.error(ErrorCode::Corrupted, "says that its header has " + std::to_string(length) +
                                                " bytes, and is no longer than " +
                                                std::to_string(file.size()) +
                                                ": it was cut off, or is no safetensors file");
  if (length > kTensorHeaderMax)
    return file.error(ErrorCode::ResourceExhausted, "has a header of " + std::to_string(length) +
                                                        " bytes; at most " +
                                                        std::to_string(kTensorHeaderMax) + " are read");
  WEFT_TRY(const std::string json, read_text_at(file, kLengthSize, length));
  Header header{.tensors = {}, .begin = kLengthSize + length};
  auto tensors = parse_tensor_header(json, file.size() - header.begin);
  if (!tensors) return file.error(tensors.error().code, tensors.error().message);
  header.tensors = std::move(*tensors);
  return header;
}

Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  WEFT_TRY(const auto file, File::open(path));
  if (file->size() > kTensorIndexMax)
    return file->error(ErrorCode::ResourceExhausted, "is larger than an index of tensors may be (" +
                                                         std::to_string(kTensorIndexMax) + " bytes)");
  WEFT_TRY(const std::string json, read_text_at(*file, 0, file->size()));
  auto index = parse_tensor_index(json);
  if (!index) return file->error(index.error().code, index.error().message);
  return index;
}

}  // namespace

std::string in_quotes(std::string_view name) {
  return "'" + printable(name.substr(0, 128)) + (name.size() > 128 ? "...'" : "'");
}

std::optional<dag::DType> dtype_of_safetensors(std::string_view name) {
  const auto at =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& row) { return row.name == name; });
  return at == kTypes.end() ? std::nullopt : std::optional(at->dtype);
}
std::string_view safetensors_name(dag::DType dtype) { return row_of(dtype).name; }
size_t safetensors_order(dag::DType dtype) { return static_cast<size_t>(&row_of(dtype) - kTypes.data()); }

Status TensorFiles::add(const File& file, std::string name, Place place) {
  place.file = files_.size();
  const auto [at, is_new] = tensors_.emplace(std::move(name), std::move(place));
  if (is_new) return {};
  const bool is_own = at->second.file == files_.size();
  return file.error(ErrorCode::Corrupted,
                    "has tensor " + in_quotes(at->first) +
                        (is_own ? " twice" : ", and so has " + paths_[at->second.file].string()));
}

Status TensorFiles::add_file(const fs::path& path) {
  WEFT_TRY(const auto file, File::open(path));
  if (is_gguf(*file)) {
    WEFT_TRY(std::vector<GgufTensor> tensors, read_gguf(*file));
    for (GgufTensor& tensor : tensors) {
      if (!tensor.unknown_type.empty())
        return file->error(ErrorCode::Unsupported, "has tensor " + in_quotes(tensor.name) + " as " +
                                                       tensor.unknown_type +
                                                       "; of types in blocks weft reads Q4_0 and Q8_0");
      WEFT_TRY_STATUS(
          add(*file, std::move(tensor.name),
              {.spec = std::move(tensor.spec), .offset = tensor.offset, .packing = tensor.packing}));
    }
  } else {
    WEFT_TRY(Header header, read_header(*file));
    for (PlacedTensor& tensor : header.tensors)
      WEFT_TRY_STATUS(add(*file, std::move(tensor.name),
                          {.spec = std::move(tensor.spec), .offset = header.begin + tensor.offset}));
  }
  files_.push_back(file);
  paths_.push_back(path);
  return {};
}

Result<TensorFiles> TensorFiles::open(const fs::path& path) {
  TensorFiles all;
  if (path.extension() != ".json") {
    WEFT_TRY_STATUS(all.add_file(path));
    return all;
  }
  WEFT_TRY(const auto index, read_index(path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  if (names.size() > kTensorFilesMax)
    return fail(ErrorCode::ResourceExhausted, path.string() + ": names " + std::to_string(names.size()) +
                                                  " files; at most " + std::to_string(kTensorFilesMax) +
                                                  " are read");
  for (const std::string& name : names) WEFT_TRY_STATUS(all.add_file(path.parent_path() / name));
  for (const auto& [tensor, file] : index) {
    const auto at = all.tensors_.find(tensor);
    if (at == all.tensors_.end() || all.paths_[at->second.file].filename() != file)
      return fail(ErrorCode::Corrupted, path.string() + ": says that " + in_quotes(tensor) + " lies in " +
                                            file + ", which has no such tensor; fetch all files again");
  }
  for (const auto& [tensor, place] : all.tensors_)
    if (!index.contains(tensor))
      return fail(ErrorCode::Corrupted, path.string() + ": does not say where " + in_quotes(tensor) +
                                            " lies, which " + all.paths_[place.file].string() +
                                            " has; fetch all files again");
  return all;
}

Status TensorFiles::read(std::string_view name, const ByteSink& sink) const {
  const auto at = tensors_.find(name);
  WEFT_CHECK(at != tensors_.end());
  const Place& place = at->second;
  // Of blocks so many that their numbers are a piece.
  constexpr uint64_t kBlocks = kPieceMax / (kBlockNumbers * sizeof(float));
  const bool is_packed = place.packing != Packing::None;
  const uint64_t most =
      is_packed
          ? packed_size({dag::DType::F32, {static_cast<int64_t>(kBlocks) * kBlockNumbers}}, place.packing)
          : kPieceMax;
  uint64_t left = packed_size(place.spec, place.packing), offset = place.offset;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(left, most)));
  std::vector<float> numbers(is_packed ? kBlocks * kBlockNumbers : 0);
  while (left > 0) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(left, most)));
    WEFT_TRY_STATUS(files_[place.file]->read_at(offset, part));
    if (is_packed) {
      const auto unpacked = std::span(numbers).first(part.size() * kBlocks * kBlockNumbers / most);
      unpack(place.packing, part, unpacked);
      WEFT_TRY_STATUS(sink(std::as_bytes(unpacked)));
    } else {
      WEFT_TRY_STATUS(sink(part));
    }
    offset += part.size();
    left -= part.size();
  }
  return {};
}

Result<dag::Tensor> TensorFiles::whole(std::string_view name) const {
  const auto at = tensors_.find(name);
  WEFT_CHECK(at != tensors_.end());
  const auto size = static_cast<size_t>(at->second.spec.bytes().value);
  std::shared_ptr<std::byte[]> bytes;
  try {
    bytes = dag::allocate_tensor_bytes(size);
  } catch (const std::exception&) {
    return fail(ErrorCode::ResourceExhausted,
                "tensor " + in_quotes(name) + " needs " + std::to_string(size) + " bytes of memory");
  }
  std::byte* to = bytes.get();
  WEFT_TRY_STATUS(read(name, [&](std::span<const std::byte> piece) -> Status {
    to = std::copy(piece.begin(), piece.end(), to);
    return {};
  }));
  return dag::Tensor(at->second.spec, std::move(bytes));
}

namespace {

// The header as the library writes it: {"__metadata__":{"format":"pt"},NAME:{...},...} and spaces.
Result<std::string> header_of(std::span<const NamedSpec> tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t offset = 0;
  for (const NamedSpec& tensor : tensors) {
    const uint64_t end = offset + static_cast<uint64_t>(tensor.spec.bytes().value);
    try {
      json += "," + nlohmann::json(tensor.name).dump() + ":";
    } catch (const nlohmann::json::exception&) {
      return fail(ErrorCode::InvalidArgument, "the name " + in_quotes(tensor.name) + " is no UTF-8");
    }
    json += R"({"dtype":")" + std::string(safetensors_name(tensor.spec.dtype)) + R"(","shape":[)";
    for (size_t i = 0; i < tensor.spec.shape.size(); ++i)
      json += (i == 0 ? "" : ",") + std::to_string(tensor.spec.shape[i]);
    json += R"(],"data_offsets":[)" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

Status check_writable_names(std::span<const NamedSpec> tensors) {
  std::set<std::string_view> names;
  for (const NamedSpec& tensor : tensors)
    if (tensor.name.empty() || tensor.name == kMetadata || !names.insert(tensor.name).second)
      return fail(ErrorCode::InvalidArgument, "a file of tensors cannot have " + in_quotes(tensor.name) +
                                                  (names.contains(tensor.name) ? " twice" : " as a name"));
  return {};
}

}  // namespace

Status write_safetensors(std::vector<NamedSpec> tensors,
                         const std::function<Status(const std::string& name, const ByteSink& sink)>& read,
                         const ByteSink& sink) {
  WEFT_TRY_STATUS(check_writable_names(tensors));
  std::sort(tensors.begin(), tensors.end(), [](const NamedSpec& a, const NamedSpec& b) {
    const size_t of_a = safetensors_order(a.spec.dtype), of_b = safetensors_order(b.spec.dtype);
    return of_a != of_b ? of_a > of_b : a.name < b.name;
  });
  WEFT_TRY(const std::string header, header_of(tensors));
  std::array<std::byte, kLengthSize> length{};
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  WEFT_TRY_STATUS(sink(length));
  WEFT_TRY_STATUS(sink(std::as_bytes(std::span(header))));
  for (const NamedSpec& tensor : tensors) {
    const auto size = static_cast<uint64_t>(tensor.spec.bytes().value);
    uint64_t written = 0;
    WEFT_TRY_STATUS(read(tensor.name, [&](std::span<const std::byte> bytes) -> Status {
      written += bytes.size();
      return written > size ? Status{} : sink(bytes);
    }));
    if (written != size)
      return fail(ErrorCode::Corrupted, "tensor " + in_quotes(tensor.name) + " came with " +
                                            std::to_string(written) + " bytes, not " + std::to_string(size));
  }
  return {};
}

}  // namespace weft::data
