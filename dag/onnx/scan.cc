#include "dag/onnx/scan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "dag/onnx/wire_reader.h"

namespace weft::onnx {
namespace {

// The message types of onnx-ml.proto, as far as their nesting matters.
enum class Kind : uint8_t {
  Model,
  Graph,
  Node,
  Attribute,
  Tensor,
  SparseTensor,
  Segment,
  ValueInfo,
  Type,
  TypeLeaf,
  Shape,
  Dimension,
  Entry,
  Annotation,
  Training,
  Function,
  OperatorSet,
};

// What a length-delimited field holds. A field that is not listed is a string or unknown bytes.
enum class Content : uint8_t { Text, Message, Fixed4, Fixed8, Varints };

struct Field {
  Kind parent;
  uint32_t number;
  Content content;
  Kind child = Kind::Model;
};

constexpr Field kFields[] = {
    {Kind::Model, 7, Content::Message, Kind::Graph},
    {Kind::Model, 8, Content::Message, Kind::OperatorSet},
    {Kind::Model, 14, Content::Message, Kind::Entry},
    {Kind::Model, 20, Content::Message, Kind::Training},
    {Kind::Model, 25, Content::Message, Kind::Function},
    {Kind::Graph, 1, Content::Message, Kind::Node},
    {Kind::Graph, 5, Content::Message, Kind::Tensor},
    {Kind::Graph, 11, Content::Message, Kind::ValueInfo},
    {Kind::Graph, 12, Content::Message, Kind::ValueInfo},
    {Kind::Graph, 13, Content::Message, Kind::ValueInfo},
    {Kind::Graph, 14, Content::Message, Kind::Annotation},
    {Kind::Graph, 15, Content::Message, Kind::SparseTensor},
    {Kind::Node, 5, Content::Message, Kind::Attribute},
    {Kind::Attribute, 5, Content::Message, Kind::Tensor},
    {Kind::Attribute, 6, Content::Message, Kind::Graph},
    {Kind::Attribute, 7, Content::Fixed4},
    {Kind::Attribute, 8, Content::Varints},
    {Kind::Attribute, 10, Content::Message, Kind::Tensor},
    {Kind::Attribute, 11, Content::Message, Kind::Graph},
    {Kind::Attribute, 14, Content::Message, Kind::Type},
    {Kind::Attribute, 15, Content::Message, Kind::Type},
    {Kind::Attribute, 22, Content::Message, Kind::SparseTensor},
    {Kind::Attribute, 23, Content::Message, Kind::SparseTensor},
    {Kind::Tensor, 1, Content::Varints},
    {Kind::Tensor, 3, Content::Message, Kind::Segment},
    {Kind::Tensor, 4, Content::Fixed4},
    {Kind::Tensor, 5, Content::Varints},
    {Kind::Tensor, 7, Content::Varints},
    {Kind::Tensor, 10, Content::Fixed8},
    {Kind::Tensor, 11, Content::Varints},
    {Kind::Tensor, 13, Content::Message, Kind::Entry},
    {Kind::SparseTensor, 1, Content::Message, Kind::Tensor},
    {Kind::SparseTensor, 2, Content::Message, Kind::Tensor},
    {Kind::SparseTensor, 3, Content::Varints},
    {Kind::ValueInfo, 2, Content::Message, Kind::Type},
    {Kind::Type, 1, Content::Message, Kind::TypeLeaf},
    {Kind::Type, 4, Content::Message, Kind::TypeLeaf},
    {Kind::Type, 5, Content::Message, Kind::TypeLeaf},
    {Kind::Type, 7, Content::Message, Kind::TypeLeaf},
    {Kind::Type, 8, Content::Message, Kind::TypeLeaf},
    {Kind::Type, 9, Content::Message, Kind::TypeLeaf},
    {Kind::Shape, 1, Content::Message, Kind::Dimension},
    {Kind::Annotation, 2, Content::Message, Kind::Entry},
    {Kind::Training, 1, Content::Message, Kind::Graph},
    {Kind::Training, 2, Content::Message, Kind::Graph},
    {Kind::Training, 3, Content::Message, Kind::Entry},
    {Kind::Training, 4, Content::Message, Kind::Entry},
    {Kind::Function, 7, Content::Message, Kind::Node},
    {Kind::Function, 9, Content::Message, Kind::OperatorSet},
    {Kind::Function, 11, Content::Message, Kind::Attribute},  // defaults, which dag/onnx/expand.cc parses
};

// A leaf of TypeProto is one of five messages that share field numbers. Field 2 of Tensor and SparseTensor is
// a shape, of Map a type; field 1 of Sequence and Optional a type, of Tensor a number. Read as whichever
// message the wire type allows: both readings nest the same way.
constexpr Field kTypeLeafElement{Kind::TypeLeaf, 1, Content::Message, Kind::Type};
constexpr Field kTypeLeafShape{Kind::TypeLeaf, 2, Content::Message, Kind::Shape};

const Field* find_field(Kind parent, uint32_t number) {
  if (parent == Kind::TypeLeaf)
    return number == 1 ? &kTypeLeafElement : number == 2 ? &kTypeLeafShape : nullptr;
  for (const Field& field : kFields)
    if (field.parent == parent && field.number == number) return &field;
  return nullptr;
}

// Upper bounds of what one object takes in protobuf 3.21 on a 64-bit machine, pointer and allocation
// included.
constexpr int64_t message_cost(Kind kind) {
  switch (kind) {
    case Kind::Attribute:
      return 448;
    case Kind::Tensor:
      return 336;
    case Kind::Graph:
      return 320;
    case Kind::Node:
      return 192;
    case Kind::Model:
      return 320;
    default:
      return 160;
  }
}
constexpr int64_t kStringCost = 64;

class Scanner : private WireReader {
 public:
  Scanner(int64_t size, const ReadAt& read, const ImportLimits& limits)
      : WireReader(size, read), limits_(limits) {}

  Status message(Kind kind, int64_t begin, int64_t end, int depth) {
    WEFT_TRY_STATUS(enter(kind, depth));
    int64_t at = begin;
    while (at < end) {
      WEFT_TRY(const uint64_t tag, varint(at, end));
      const auto number = static_cast<uint32_t>(tag >> 3);
      if (number == 0 || (tag >> 3) > 0x1FFFFFFF) return corrupted(at, "a field number out of range");
      switch (tag & 7) {
        case 0: {
          WEFT_TRY_STATUS(varint(at, end));
          WEFT_TRY_STATUS(count_numbers(1, 16));
          break;
        }
        case 1:
          at += 8;
          WEFT_TRY_STATUS(count_numbers(1, 16));
          break;
        case 5:
          at += 4;
          WEFT_TRY_STATUS(count_numbers(1, 16));
          break;
        case 2: {
          WEFT_TRY(const uint64_t length, varint(at, end));
          if (length > static_cast<uint64_t>(end - at))
            return corrupted(at, "a field that is longer than what holds it");
          const int64_t field_end = at + static_cast<int64_t>(length);
          WEFT_TRY_STATUS(delimited(kind, number, at, field_end, depth));
          at = field_end;
          break;
        }
        default:
          return corrupted(at, "a wire type that ONNX does not use");
      }
      if (at > end) return corrupted(end, "a message that ends inside a field");
    }
    return {};
  }

  const ScanCounts& counts() const { return counts_; }

 private:
  Status enter(Kind kind, int depth) {
    counts_.depth = std::max(counts_.depth, depth);
    if (depth > limits_.nesting_depth_max)
      return exceeded("messages nested in one another", depth, limits_.nesting_depth_max);
    if (++counts_.messages > limits_.message_count_max)
      return exceeded("protobuf messages", counts_.messages, limits_.message_count_max);
    if (kind == Kind::Node && ++counts_.nodes > limits_.node_count_max)
      return exceeded("nodes", counts_.nodes, limits_.node_count_max);
    if (kind == Kind::Attribute && ++counts_.attributes > limits_.attribute_count_max)
      return exceeded("attributes", counts_.attributes, limits_.attribute_count_max);
    if (kind == Kind::Tensor && ++counts_.tensors > limits_.tensor_count_max)
      return exceeded("tensors", counts_.tensors, limits_.tensor_count_max);
    if (kind == Kind::Function && ++counts_.functions > limits_.function_count_max)
      return exceeded("functions", counts_.functions, limits_.function_count_max);
    return add_overhead(message_cost(kind));
  }

  Status delimited(Kind parent, uint32_t number, int64_t begin, int64_t end, int depth) {
    const Field* field = find_field(parent, number);
    const int64_t length = end - begin;
    if (!field) {
      ++counts_.strings;
      counts_.payload_bytes += length;
      return add_overhead(kStringCost);
    }
    switch (field->content) {
      case Content::Message:
        return message(field->child, begin, end, depth + 1);
      case Content::Text:
        break;
      case Content::Fixed4:
      case Content::Fixed8:
        counts_.payload_bytes += length;
        return {};
      // A varint of one byte becomes eight; count them as such without visiting each.
      case Content::Varints:
        return count_numbers(length, 8);
    }
    return {};
  }

  Status count_numbers(int64_t count, int64_t bytes_each) {
    counts_.numbers += count;
    return add_overhead(count * bytes_each);
  }
  Status add_overhead(int64_t bytes) {
    counts_.overhead_bytes += bytes;
    // Tensors written as lists of integers are legitimate and in proportion to the file: a factor of eight
    // over what the file spends on them, but never beyond the limit.
    if (counts_.overhead_bytes > limits_.parse_overhead_bytes_max)
      return exceeded("bytes to hold its structure in memory", counts_.overhead_bytes,
                      limits_.parse_overhead_bytes_max);
    return {};
  }

  static tl::unexpected<Error> exceeded(const char* what, int64_t count, int64_t limit) {
    return fail(ErrorCode::ResourceExhausted, "the model has at least " + std::to_string(count) + " " + what +
                                                  "; at most " + std::to_string(limit) + " are accepted");
  }

  const ImportLimits& limits_;
  ScanCounts counts_;
};

Result<ScanCounts> scan(Kind kind, int64_t size, const ReadAt& read, const ImportLimits& limits) {
  if (size > limits.file_bytes_max)
    return fail(ErrorCode::ResourceExhausted, "the file has " + std::to_string(size) + " bytes; at most " +
                                                  std::to_string(limits.file_bytes_max) +
                                                  " are accepted (use external data for larger models)");
  Scanner scanner(size, read, limits);
  WEFT_TRY_STATUS(scanner.message(kind, 0, size, 1));
  return scanner.counts();
}

ReadAt reader_of(std::span<const std::byte> bytes) {
  return [bytes](int64_t offset, std::span<std::byte> target) -> Status {
    std::memcpy(target.data(), bytes.data() + offset, target.size());
    return {};
  };
}

}  // namespace

Result<ScanCounts> scan_model(int64_t size, const ReadAt& read, const ImportLimits& limits) {
  return scan(Kind::Model, size, read, limits);
}
Result<ScanCounts> scan_model(std::span<const std::byte> bytes, const ImportLimits& limits) {
  return scan(Kind::Model, static_cast<int64_t>(bytes.size()), reader_of(bytes), limits);
}
Result<ScanCounts> scan_tensor(std::span<const std::byte> bytes, const ImportLimits& limits) {
  return scan(Kind::Tensor, static_cast<int64_t>(bytes.size()), reader_of(bytes), limits);
}

}  // namespace weft::onnx
