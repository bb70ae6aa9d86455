#include "proto/codec/scan.h"

#include <string>

#include "proto/codec/bounds.h"

namespace weft::proto {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Upper bounds of what one object takes in protobuf 3.21 on a 64-bit machine, pointer and allocation
// included.
constexpr size_t kMessageCost = 256;
constexpr size_t kTextCost = 64;
constexpr size_t kNumberCost = 16;  // a list grows by doubling
constexpr size_t kUnknownCost = 128;

enum WireType : uint32_t { kVarint = 0, kFixed8 = 1, kDelimited = 2, kFixed4 = 5 };

class Scanner {
 public:
  explicit Scanner(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Status message(const Descriptor& type, size_t end, int depth) {
    if (depth > kNestingMax)
      return fail(ErrorCode::ResourceExhausted, "messages nested deeper than " + std::to_string(kNestingMax));
    WEFT_TRY_STATUS(charge(kMessageCost));
    while (at_ < end) {
      WEFT_TRY(const uint64_t tag, varint(end));
      const uint64_t number = tag >> 3;
      if (number == 0 || number > 0x1FFFFFFF) return corrupted("a field number out of range");
      WEFT_TRY_STATUS(field(type.FindFieldByNumber(static_cast<int>(number)), tag & 7, end, depth));
    }
    return {};
  }

 private:
  Status field(const FieldDescriptor* field, uint64_t wire_type, size_t end, int depth) {
    if (!field) {
      if (++unknown_ > kUnknownFieldsMax)
        return fail(ErrorCode::ResourceExhausted, "more than " + std::to_string(kUnknownFieldsMax) +
                                                      " fields that this version does not know");
      WEFT_TRY_STATUS(charge(kUnknownCost));
    }
    switch (wire_type) {
      case kVarint:
        WEFT_TRY_STATUS(varint(end));
        return number_of(field, false);
      case kFixed8:
        WEFT_TRY_STATUS(skip(8, end));
        return number_of(field, false);
      case kFixed4:
        WEFT_TRY_STATUS(skip(4, end));
        return number_of(field, false);
      case kDelimited:
        break;
      default:
        return corrupted("a wire type that is not used");
    }
    WEFT_TRY(const uint64_t length, varint(end));
    if (length > end - at_) return corrupted("a field that is longer than what holds it");
    if (field && field->type() == FieldDescriptor::TYPE_MESSAGE)
      return message(*field->message_type(), at_ + length, depth + 1);
    if (field && field->type() == FieldDescriptor::TYPE_BYTES) {
      WEFT_TRY_STATUS(charge(kTextCost));
    } else if (field) {
      WEFT_TRY_STATUS(number_of(field, true));
      // A list of numbers: one of a byte becomes eight.
      const size_t each = field->type() == FieldDescriptor::TYPE_DOUBLE ? sizeof(double) : 1;
      WEFT_TRY_STATUS(charge(length / each * kNumberCost));
    }
    return skip(length, end);
  }

  // A number where the schema has one; protobuf would keep any other as an unknown field.
  Status number_of(const FieldDescriptor* field, bool list) {
    if (!field) return {};
    const bool is_number =
        field->type() != FieldDescriptor::TYPE_MESSAGE && field->type() != FieldDescriptor::TYPE_BYTES;
    if (!is_number || (list && !field->is_repeated())) return corrupted("a field of another type");
    return list ? Status{} : charge(field->is_repeated() ? kNumberCost : 0);
  }

  Status skip(uint64_t count, size_t end) {
    if (count > end - at_) return corrupted("a field that is cut off");
    at_ += count;
    return {};
  }

  Status charge(size_t bytes) {
    overhead_ += bytes;
    if (overhead_ > kScanOverheadMax)
      return fail(
          ErrorCode::ResourceExhausted,
          "it holds more parts than fit into " + std::to_string(kScanOverheadMax >> 20) + " MiB of memory");
    return {};
  }

  Result<uint64_t> varint(size_t end) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ >= end) return corrupted("a number that is cut off");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) return corrupted("a number of more than 64 bits");
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return corrupted("a number of more than ten bytes");
  }

  tl::unexpected<Error> corrupted(const char* what) const {
    return fail(ErrorCode::Corrupted, std::string(what) + " near byte " + std::to_string(at_));
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  size_t overhead_ = 0;
  size_t unknown_ = 0;
};

}  // namespace

Status scan(std::span<const std::byte> bytes, const Descriptor& message) {
  return Scanner(bytes).message(message, bytes.size(), 1);
}

}  // namespace weft::proto
