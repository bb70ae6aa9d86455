#include "dag/onnx/pack.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include "dag/onnx/external.h"
#include "dag/onnx/fields.h"
#include "dag/onnx/scan.h"
#include "dag/onnx/wire_reader.h"

namespace weft::onnx {
namespace {

constexpr size_t kFilesMax = 64;  // as the import

using fields::kEntryKey;
using fields::kEntryValue;
using fields::kGraphInitializer;
using fields::kModelGraph;
using fields::kTensorExternalData;
using fields::kTensorFloatData;
using fields::kTensorRawData;

struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Steps through the length-delimited fields of messages.
class Walker : private WireReader {
 public:
  Walker(int64_t size, const ReadAt& read) : WireReader(size, read) {}
  using WireReader::corrupted;

  using OnField = std::function<Status(uint32_t number, Span content)>;
  Status fields(Span message, const OnField& on_field) {
    for (int64_t at = message.begin; at < message.end;) {
      WEFT_TRY(const uint64_t tag, varint(at, message.end));
      uint64_t length = 0;
      switch (tag & 7) {
        case 0:
          WEFT_TRY_STATUS(varint(at, message.end));
          continue;
        case 1:
          length = 8;
          break;
        case 2: {
          WEFT_TRY(length, varint(at, message.end));
          break;
        }
        case 5:
          length = 4;
          break;
        default:
          return corrupted(at, "a wire type that ONNX does not use");
      }
      if (length > static_cast<uint64_t>(message.end - at))
        return corrupted(at, "a field that is longer than what holds it");
      const Span content{at, at + static_cast<int64_t>(length)};
      at = content.end;
      if ((tag & 7) == 2 && (tag >> 3) <= 0x1FFFFFFF)
        WEFT_TRY_STATUS(on_field(static_cast<uint32_t>(tag >> 3), content));
    }
    return {};
  }

  Result<std::string> text(Span content, int64_t size_max) {
    if (content.size() > size_max) return corrupted(content.begin, "a name that is too long");
    std::string text(static_cast<size_t>(content.size()), '\0');
    if (!text.empty()) WEFT_TRY_STATUS(read_(content.begin, std::as_writable_bytes(std::span(text))));
    return text;
  }
};

// Each initializer of the main graph.
Status for_each_initializer(int64_t size, Walker& walker, const ImportLimits& limits,
                            const std::function<Status(Span tensor)>& visit) {
  if (size > limits.file_bytes_max)
    return fail(ErrorCode::ResourceExhausted, "the model has " + std::to_string(size) + " bytes; at most " +
                                                  std::to_string(limits.file_bytes_max) + " are accepted");
  int64_t count = 0;
  return walker.fields({0, size}, [&](uint32_t field, Span graph) -> Status {
    if (field != kModelGraph) return {};
    return walker.fields(graph, [&](uint32_t inner, Span tensor) -> Status {
      if (inner != kGraphInitializer) return {};
      if (++count > limits.tensor_count_max)
        return fail(ErrorCode::ResourceExhausted,
                    "the model has more than " + std::to_string(limits.tensor_count_max) + " tensors");
      return visit(tensor);
    });
  });
}

Result<std::vector<TensorRange>> ranges_of(int64_t size, const ReadAt& read, const ImportLimits& limits) {
  Walker walker(size, read);
  std::vector<TensorRange> ranges;
  WEFT_TRY_STATUS(for_each_initializer(size, walker, limits, [&](Span tensor) {
    return walker.fields(tensor, [&](uint32_t field, Span content) -> Status {
      const bool is_data = field == kTensorRawData || field == kTensorFloatData;
      if (is_data && static_cast<uint64_t>(content.size()) >= kPackedTensorMin)
        ranges.push_back({static_cast<uint64_t>(content.begin), static_cast<uint64_t>(content.size())});
      return {};
    });
  }));
  return ranges;
}

ReadAt reader_of(const File& file) {
  return [&file](int64_t offset, std::span<std::byte> bytes) { return file.read_at(offset, bytes); };
}

// ---- external data

struct Place {
  std::string location;
  std::optional<uint64_t> offset, length;
};

// One entry of external_data: a key and its value.
Status read_entry(Walker& walker, Span entry, const ImportLimits& limits, Place& place) {
  std::string key, value;
  Status read = walker.fields(entry, [&](uint32_t field, Span content) -> Status {
    if (field != kEntryKey && field != kEntryValue) return {};
    WEFT_TRY((field == kEntryKey ? key : value), walker.text(content, limits.name_bytes_max));
    return {};
  });
  if (!read) return read;
  uint64_t number = 0;
  const bool is_number = std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc();
  if (key == "location") place.location = value;
  if (key == "offset" && is_number) place.offset = number;
  if (key == "length" && is_number) place.length = number;
  return {};
}

Result<Place> read_place(Walker& walker, Span tensor, const ImportLimits& limits) {
  Place place;
  WEFT_TRY_STATUS(walker.fields(tensor, [&](uint32_t field, Span content) -> Status {
    return field == kTensorExternalData ? read_entry(walker, content, limits, place) : Status{};
  }));
  return place;
}

// Those of some size, inside the file, none overlapping another.
std::vector<TensorRange> tidy(std::vector<TensorRange> ranges, uint64_t size) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.size) < std::pair(b.offset, b.size);
  });
  std::vector<TensorRange> kept;
  for (const TensorRange& range : ranges) {
    const uint64_t end = kept.empty() ? 0 : kept.back().offset + kept.back().size;
    if (range.size >= kPackedTensorMin && range.offset >= end && range.offset <= size &&
        range.size <= size - range.offset)
      kept.push_back(range);
  }
  return kept;
}

}  // namespace

Result<std::vector<TensorRange>> tensor_ranges(std::span<const std::byte> bytes, const ImportLimits& limits) {
  const ReadAt read = [bytes](int64_t offset, std::span<std::byte> target) -> Status {
    std::memcpy(target.data(), bytes.data() + offset, target.size());
    return {};
  };
  return ranges_of(static_cast<int64_t>(bytes.size()), read, limits);
}

Result<std::vector<TensorRange>> tensor_ranges(const std::filesystem::path& model,
                                               const ImportLimits& limits) {
  WEFT_TRY(const File file, open_file(model));
  auto ranges = ranges_of(file.size(), reader_of(file), limits);
  if (!ranges) return fail(ranges.error().within(model.string()));
  return ranges;
}

Result<std::vector<ExternalFile>> list_external_files(const std::filesystem::path& model,
                                                      const ImportLimits& limits) {
  WEFT_TRY(const File file, open_file(model));
  const ReadAt read = reader_of(file);
  Walker walker(file.size(), read);
  struct Named {
    std::string location;  // as the model writes it
    std::vector<TensorRange> ranges;
  };
  std::map<std::string, Named> places;  // by the path that it comes to
  const Status walked = for_each_initializer(file.size(), walker, limits, [&](Span tensor) -> Status {
    WEFT_TRY(const Place place, read_place(walker, tensor, limits));
    if (place.location.empty()) return {};
    auto& [location, ranges] =
        places[std::filesystem::path(place.location).lexically_normal().generic_string()];
    if (location.empty()) location = place.location;
    if (places.size() > kFilesMax)
      return fail(ErrorCode::ResourceExhausted, "external data in more than 64 files");
    if (place.length) ranges.push_back({place.offset.value_or(0), *place.length});
    return {};
  });
  if (!walked) return fail(walked.error().within(model.string()));
  std::vector<ExternalFile> files;
  for (auto& [path, named] : places) {
    auto opened = open_beneath(model.parent_path(), named.location);
    if (!opened) return fail(opened.error().within(model.string()));
    const auto size = static_cast<uint64_t>(opened->size());
    files.push_back({path, size, tidy(std::move(named.ranges), size)});
  }
  return files;
}

}  // namespace weft::onnx
