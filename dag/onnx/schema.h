// Internal to dag/onnx: ONNX's protobuf classes under a name that does not clash with weft::onnx.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

namespace weft::onnx {
namespace pb = ::onnx;

// Whether the file says the size: -1, as some exporters write, says nothing.
inline bool is_known(const pb::TensorShapeProto::Dimension& dim) {
  return dim.has_dim_value() && dim.dim_value() != -1;
}

// A string or message field that ONNX got after the schema that these classes were made from: they keep it,
// unread, and write it back. Its occurrences in order.
inline std::vector<std::string> unread_field(const google::protobuf::Message& message, int number) {
  std::vector<std::string> found;
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED)
      found.push_back(field.length_delimited());
  }
  return found;
}

}  // namespace weft::onnx
