#include "dag/onnx/skeleton.h"

#include <functional>
#include <utility>

#include "dag/onnx/fields.h"
#include "dag/onnx/wire_reader.h"

namespace weft::onnx {
namespace {

struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

struct Field {
  uint32_t number = 0, wire_type = 0;
  Span whole;    // with its tag
  Span content;  // of a delimited one
};

void append_varint(std::vector<std::byte>& bytes, uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<std::byte>(value | 0x80));
  bytes.push_back(static_cast<std::byte>(value));
}

bool holds_data(uint32_t number) {
  switch (number) {
    case fields::kTensorSegment:
    case fields::kTensorFloatData:
    case fields::kTensorInt32Data:
    case fields::kTensorStringData:
    case fields::kTensorInt64Data:
    case fields::kTensorRawData:
    case fields::kTensorDoubleData:
    case fields::kTensorUint64Data:
    case fields::kTensorExternalData:
      return true;
    default:
      return false;
  }
}

// A message that is put together from parts of the file. Parts that follow each other are read at once.
class Message {
 public:
  explicit Message(const ReadAt& read) : read_(read) {}

  Status copy(Span part) {
    if (part.begin != pending_.end) {
      WEFT_TRY_STATUS(flush());
      pending_ = part;
    }
    pending_.end = part.end;
    return {};
  }
  Status add(uint32_t field, Message& inner) {
    WEFT_TRY_STATUS(inner.flush());
    WEFT_TRY_STATUS(flush());
    append_varint(bytes_, field << 3 | fields::kDelimited);
    append_varint(bytes_, inner.bytes_.size());
    bytes_.insert(bytes_.end(), inner.bytes_.begin(), inner.bytes_.end());
    return {};
  }
  Result<std::vector<std::byte>> take() {
    WEFT_TRY_STATUS(flush());
    return std::move(bytes_);
  }

 private:
  Status flush() {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + static_cast<size_t>(pending_.size()));
    const Span part = std::exchange(pending_, {});
    return part.size() == 0 ? Status{} : read_(part.begin, std::span(bytes_).subspan(begin));
  }

  const ReadAt& read_;
  std::vector<std::byte> bytes_;
  Span pending_;
};

class Cutter : private WireReader {
 public:
  Cutter(int64_t size, const ReadAt& read, int64_t kept_max) : WireReader(size, read), kept_max_(kept_max) {}

  Result<Skeleton> run() {
    Message model(read_);
    const Status copied = for_each_field({0, size_}, [&](const Field& field) -> Status {
      if (field.number != fields::kModelGraph || field.wire_type != fields::kDelimited)
        return model.copy(field.whole);
      Message graph(read_);
      WEFT_TRY_STATUS(cut_graph(field.content, graph));
      return model.add(fields::kModelGraph, graph);
    });
    if (!copied) return fail(copied.error());
    WEFT_TRY(skeleton_.bytes, model.take());
    return std::move(skeleton_);
  }

 private:
  Status cut_graph(Span content, Message& graph) {
    return for_each_field(content, [&](const Field& field) -> Status {
      if (field.number != fields::kGraphInitializer || field.wire_type != fields::kDelimited)
        return graph.copy(field.whole);
      std::optional<Field> data;
      if (field.content.size() > kept_max_) {
        WEFT_TRY(data, large_data(field.content));
      }
      skeleton_.initializers.emplace_back();
      if (!data) return graph.copy(field.whole);
      skeleton_.initializers.back() = Skeleton::Cut{data->number, data->content.begin, data->content.size()};
      Message tensor(read_);
      WEFT_TRY_STATUS(tensor.copy({field.content.begin, data->whole.begin}));
      WEFT_TRY_STATUS(tensor.copy({data->whole.end, field.content.end}));
      return graph.add(fields::kGraphInitializer, tensor);
    });
  }

  // The field that holds all of a tensor's data as it lies in memory, if one does.
  Result<std::optional<Field>> large_data(Span tensor) {
    std::optional<Field> data;
    int count = 0;
    WEFT_TRY_STATUS(for_each_field(tensor, [&](const Field& field) -> Status {
      if (!holds_data(field.number)) return {};
      ++count;
      const bool is_plain =
          field.number == fields::kTensorRawData || field.number == fields::kTensorFloatData;
      if (is_plain && field.wire_type == fields::kDelimited && field.content.size() > kept_max_) data = field;
      return {};
    }));
    if (count != 1) data.reset();
    return data;
  }

  Status for_each_field(Span message, const std::function<Status(const Field&)>& visit) {
    for (int64_t at = message.begin; at < message.end;) {
      Field field;
      field.whole.begin = at;
      WEFT_TRY(const uint64_t tag, varint(at, message.end));
      field.number = static_cast<uint32_t>(tag >> 3);
      field.wire_type = static_cast<uint32_t>(tag & 7);
      WEFT_TRY(const uint64_t length, length_of(field.wire_type, at, message.end));
      if (length > static_cast<uint64_t>(message.end - at))
        return corrupted(at, "a field that is longer than what holds it");
      field.content = {at, at + static_cast<int64_t>(length)};
      at = field.whole.end = field.content.end;
      WEFT_TRY_STATUS(visit(field));
    }
    return {};
  }

  Result<uint64_t> length_of(uint32_t wire_type, int64_t& at, int64_t end) {
    switch (wire_type) {
      case 0: {
        WEFT_TRY_STATUS(varint(at, end));
        return uint64_t{0};
      }
      case 1:
        return uint64_t{8};
      case fields::kDelimited:
        return varint(at, end);
      case 5:
        return uint64_t{4};
      default:
        return corrupted(at, "a wire type that ONNX does not use");
    }
  }

  const int64_t kept_max_;
  Skeleton skeleton_;
};

}  // namespace

Result<Skeleton> read_skeleton(int64_t size, const ReadAt& read, int64_t kept_max) {
  return Cutter(size, read, kept_max).run();
}

}  // namespace weft::onnx
