#include "peer/backend/reference/reference_kernels.h"

#include <new>

#include "dag/op_table.h"
#include "peer/backend/reference/kernels.h"

namespace weft::peer {
namespace reference {

int64_t wrapped(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::I8:
      return static_cast<int8_t>(value);
    case DType::U8:
      return static_cast<uint8_t>(value);
    case DType::I16:
      return static_cast<int16_t>(value);
    case DType::U16:
      return static_cast<uint16_t>(value);
    case DType::I32:
      return static_cast<int32_t>(value);
    case DType::U32:
      return static_cast<uint32_t>(value);
    default:
      return value;
  }
}

double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::F16:
      return dag::float_from_f16(dag::f16_from_float(static_cast<float>(value)));
    case DType::BF16:
      return dag::float_from_bf16(dag::bf16_from_float(static_cast<float>(value)));
    case DType::F32:
      return static_cast<float>(value);
    default:
      return value;
  }
}

namespace {
Status run_family(dag::Family family, const Call& call) {
  switch (family) {
    case dag::Family::Elementwise:
      run_elementwise(call);
      return {};
    case dag::Family::Shape:
      run_shape(call);
      return {};
    case dag::Family::Reduction:
      run_reduction(call);
      return {};
    case dag::Family::MatMul:
      run_matmul(call);
      return {};
    case dag::Family::Convolution:
      run_convolution(call);
      return {};
    case dag::Family::Normalisation:
      run_normalisation(call);
      return {};
    case dag::Family::Softmax:
      run_softmax(call);
      return {};
    case dag::Family::Pooling:
      run_pooling(call);
      return {};
    case dag::Family::Random:
      run_random(call);
      return {};
    case dag::Family::Sampling:
      run_sampling(call);
      return {};
    case dag::Family::Recurrent:
      run_recurrent(call);
      return {};
    case dag::Family::Leaf:
      break;
  }
  return fail(ErrorCode::Unsupported,
              std::string(to_string(call.kind)) + " is a leaf: its value comes from outside");
}
}  // namespace
}  // namespace reference

RefValue ref_from_tensor(const dag::Tensor& tensor) {
  RefValue value{tensor.spec(), {}, {}};
  if (value.is_real())
    value.reals = dag::to_doubles(tensor);
  else
    value.wholes = dag::to_int64s(tensor);
  return value;
}

dag::Tensor ref_to_tensor(const RefValue& value) {
  return value.is_real() ? dag::from_doubles(value.spec, value.reals)
                         : dag::from_int64s(value.spec, value.wholes);
}

Status run_reference_op(const dag::Op& op, std::span<const RefValue* const> inputs,
                        std::span<RefValue> outputs, const StepContext& context) try {
  for (RefValue& output : outputs) {
    const auto count = static_cast<size_t>(output.count());
    output.reals.assign(output.is_real() ? count : 0, 0.0);
    output.wholes.assign(output.is_real() ? 0 : count, 0);
  }
  return reference::run_family(dag::op_table().row(op.kind).family,
                               {op.kind, op.attributes, inputs, outputs, context});
} catch (const std::bad_alloc&) {
  return fail(ErrorCode::ResourceExhausted,
              "no memory for the results of " + std::string(to_string(op.kind)));
}

Result<std::vector<dag::Tensor>> evaluate_reference(const dag::Op& op,
                                                    std::span<const dag::Tensor* const> inputs,
                                                    std::span<const dag::TensorSpec> outputs) try {
  std::vector<const dag::TensorSpec*> specs;
  for (const dag::Tensor* input : inputs) specs.push_back(input ? &input->spec() : nullptr);
  const dag::OpRow& row = dag::op_table().row(op.kind);
  const FlopCount flops =
      row.flops ? row.flops(dag::ShapeContext{specs, op.attributes}, outputs) : FlopCount{0};
  bool too_large = flops.value > kFoldFlopsMax;
  for (const dag::TensorSpec& output : outputs)
    too_large = too_large || output.element_count() > kFoldElementsMax;
  if (too_large)
    return fail(ErrorCode::ResourceExhausted,
                "folding " + std::string(to_string(op.kind)) + " into a constant is too large");

  std::vector<RefValue> values, results;
  values.reserve(inputs.size());
  std::vector<const RefValue*> operands;
  for (const dag::Tensor* input : inputs) {
    values.push_back(input ? ref_from_tensor(*input) : RefValue{});
    operands.push_back(input ? &values.back() : nullptr);
  }
  for (const dag::TensorSpec& output : outputs) results.push_back({output, {}, {}});
  WEFT_TRY_STATUS(run_reference_op(op, operands, results, StepContext{}));
  std::vector<dag::Tensor> tensors;
  tensors.reserve(results.size());
  for (const RefValue& result : results) tensors.push_back(ref_to_tensor(result));
  return tensors;
} catch (const std::bad_alloc&) {
  return fail(ErrorCode::ResourceExhausted, "no memory to fold " + std::string(to_string(op.kind)));
}

}  // namespace weft::peer
