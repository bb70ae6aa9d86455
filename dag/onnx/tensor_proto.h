// Internal to dag/onnx: TensorProto to Tensor, every claim checked before memory is taken.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "dag/onnx/limits.h"
#include "dag/onnx/schema.h"
#include "dag/tensor.h"

namespace weft::onnx {

// Unsupported, by name, for strings, complex numbers and types of eight bits or less that are no integers;
// Corrupted for numbers that name no type.
Result<dag::DType> dtype_from_onnx(int32_t data_type);
int32_t dtype_to_onnx(dag::DType dtype);

// Stored numbers of four bits, two in a byte: int4 and uint4. Their tensors here are of eight bits.
bool is_four_bit(const pb::TensorProto& proto);
// Whether a model holds the numbers of such an initializer as its file does: those of a matrix that is no
// small one.
bool stays_packed(const pb::TensorProto& proto, const dag::TensorSpec& spec);
// Whether a tensor of this spec, which a model has for it, is so.
bool is_packed(const pb::TensorProto& proto, const dag::TensorSpec& held);
// Bytes that the data of a tensor of this spec takes in the file. Of what is packed it is the spec's.
int64_t stored_bytes(const pb::TensorProto& proto, const dag::TensorSpec& spec);
// Between the file's bytes and the tensor's. REQUIRES: `stored` has stored_bytes().
dag::Tensor tensor_from_stored(const pb::TensorProto& proto, const dag::TensorSpec& spec,
                               std::span<const std::byte> stored);
std::vector<std::byte> stored_form(const pb::TensorProto& proto, const dag::Tensor& tensor);

// The spec that the proto claims: dims within limits, sizes that fit. Data is not looked at.
Result<dag::TensorSpec> tensor_spec(const pb::TensorProto& proto, const ImportLimits& limits);

// The tensor with its data, from raw_data or the typed field; external data is refused here.
Result<dag::Tensor> tensor_from_proto(const pb::TensorProto& proto, const ImportLimits& limits);

// Any non-zero byte is true in ONNX; weft keeps 0 and 1.
void normalise_bools(dag::Tensor& tensor);

// Writes `tensor` into the field that the proto uses already: raw_data when `raw`, else the typed field.
// REQUIRES: the proto's dtype and element count are the tensor's.
void store_in_proto(const dag::Tensor& tensor, bool raw, pb::TensorProto& proto);

}  // namespace weft::onnx
