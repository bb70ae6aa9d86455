#include "peer/backend/cuda/fused_expression.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

namespace weft::peer::cuda {

using dag::Attr;
using dag::DType;
using dag::OpKind;

// Patterns hold operands as $1 to $3, the draw as $D and the result's type as $T. nullptr: not served.
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const char* float_unary(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Neg:
      return "-$1";
    case OpKind::Abs:
      return "math::absolute($1)";
    case OpKind::Sign:
      return "math::sign($1)";
    case OpKind::Exp:
      return "math::exp($1)";
    case OpKind::Log:
      return "math::log($1)";
    case OpKind::Sqrt:
      return "sqrtf($1)";
    case OpKind::Reciprocal:
      return "1.0f / $1";
    case OpKind::Sin:
      return "math::sin($1)";
    case OpKind::Cos:
      return "math::cos($1)";
    case OpKind::Tan:
      return "math::tan($1)";
    case OpKind::Asin:
      return "math::asin($1)";
    case OpKind::Acos:
      return "math::acos($1)";
    case OpKind::Atan:
      return "math::atan($1)";
    case OpKind::Sinh:
      return "math::sinh($1)";
    case OpKind::Cosh:
      return "math::cosh($1)";
    case OpKind::Asinh:
      return "math::asinh($1)";
    case OpKind::Acosh:
      return "math::acosh($1)";
    case OpKind::Atanh:
      return "math::atanh($1)";
    case OpKind::Tanh:
      return "math::tanh($1)";
    case OpKind::Sigmoid:
      return "math::sigmoid($1)";
    case OpKind::Relu:
      return "math::relu($1)";
    case OpKind::Erf:
      return "math::erf($1)";
    case OpKind::Gelu:
      return op.attributes.get_int(Attr::Approximate) != 0 ? "math::gelu_tanh($1)" : "math::gelu($1)";
    case OpKind::Softplus:
      return "math::softplus($1)";
    case OpKind::Floor:
      return "floorf($1)";
    case OpKind::Ceil:
      return "ceilf($1)";
    case OpKind::Round:
    case OpKind::RoundThrough:
      return "rintf($1)";
    case OpKind::RoundToHalf:
      return op.attributes.get_int(Attr::DType) == static_cast<int64_t>(DType::F16)
                 ? "elements::converted<float>(elements::converted<elements::Half>($1))"
                 : "elements::converted<float>(elements::converted<elements::Brain>($1))";
    case OpKind::IsNaN:
      return "$1 != $1";
    case OpKind::IsInf:
      return "math::absolute($1) == math::infinity()";
    default:
      return nullptr;
  }
}

const char* comparison(OpKind kind) {
  switch (kind) {
    case OpKind::Equal:
      return "$1 == $2";
    case OpKind::Less:
      return "$1 < $2";
    case OpKind::LessEqual:
      return "$1 <= $2";
    case OpKind::Greater:
      return "$1 > $2";
    case OpKind::GreaterEqual:
      return "$1 >= $2";
    default:
      return nullptr;
  }
}

const char* float_binary(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Add:
      return "$1 + $2";
    case OpKind::Sub:
      return "$1 - $2";
    case OpKind::Mul:
      return "$1 * $2";
    case OpKind::Div:
      return "$1 / $2";
    case OpKind::Min:
      return "elements::smaller($1, $2)";
    case OpKind::Max:
      return "elements::larger($1, $2)";
    case OpKind::Mod:
      return op.attributes.get_int(Attr::Fmod) != 0 ? "math::mod_truncate($1, $2)"
                                                    : "math::mod_floor($1, $2)";
    case OpKind::RandomUniform:
      return "$1 + ($2 - $1) * random::fraction($D)";
    case OpKind::RandomNormal:
      return "$1 + $2 * $D";
    case OpKind::ReluGrad:
      return "$2 > 0.0f ? $1 : 0.0f";
    case OpKind::TanhGrad:
      return "$1 * (1.0f - $2 * $2)";
    case OpKind::SigmoidGrad:
      return "$1 * $2 * (1.0f - $2)";
    case OpKind::GeluGrad:
      return op.attributes.get_int(Attr::Approximate) != 0 ? "math::gelu_tanh_grad($1, $2)"
                                                           : "math::gelu_grad($1, $2)";
    default:
      return comparison(op.kind);
  }
}

const char* on_bools(OpKind kind) {
  switch (kind) {
    case OpKind::Not:
      return "!$1";
    case OpKind::And:
      return "$1 && $2";
    case OpKind::Or:
      return "$1 || $2";
    case OpKind::Xor:
      return "$1 != $2";
    case OpKind::Equal:
      return "$1 == $2";
    default:
      return nullptr;
  }
}

const char* on_integers(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Neg:
      return "elements::negative($1)";
    case OpKind::Abs:
      return "elements::magnitude($1)";
    case OpKind::Sign:
      return "elements::sign($1)";
    case OpKind::BitNot:
      return "static_cast<$T>(~$1)";
    case OpKind::Add:
      return "elements::add($1, $2)";
    case OpKind::Sub:
      return "elements::subtract($1, $2)";
    case OpKind::Mul:
      return "elements::multiply($1, $2)";
    case OpKind::Div:
      return "elements::divide($1, $2)";
    case OpKind::Min:
      return "$1 < $2 ? $1 : $2";
    case OpKind::Max:
      return "$1 > $2 ? $1 : $2";
    case OpKind::Mod:
      return op.attributes.get_int(Attr::Fmod) != 0 ? "elements::remainder_truncate($1, $2)"
                                                    : "elements::remainder_floor($1, $2)";
    case OpKind::BitAnd:
      return "static_cast<$T>($1 & $2)";
    case OpKind::BitOr:
      return "static_cast<$T>($1 | $2)";
    case OpKind::BitXor:
      return "static_cast<$T>($1 ^ $2)";
    case OpKind::ShiftLeft:
      return "elements::shifted_left($1, $2)";
    case OpKind::ShiftRight:
      return "elements::shifted_right($1, $2)";
    default:
      return comparison(op.kind);
  }
}

// A scalar constant's value, where the operand is one.
std::optional<double> constant_scalar(const dag::Graph& graph, dag::ValueId value) {
  const dag::Op& producer = graph.producer(value);
  if (producer.kind != OpKind::Constant || graph.spec(value).element_count() != 1) return std::nullopt;
  return dag::to_doubles(graph.constant(producer))[0];
}

// Whether each of its values is a float.
bool fits_float(DType dtype) {
  return dtype == DType::F32 || dtype == DType::I8 || dtype == DType::U8 || dtype == DType::I16 ||
         dtype == DType::U16;
}

std::optional<std::string> pow_pattern(const dag::Graph& graph, const dag::Op& op) {
  const DType base = graph.spec(op.inputs[0]).dtype, exponent = graph.spec(op.inputs[1]).dtype;
  if (dag::is_integer(base)) {
    // The reference counts in int64, and so do exponents here.
    if (!dag::is_integer(exponent) || exponent == DType::U64) return std::nullopt;
    return "elements::power($1, static_cast<int64_t>($2))";
  }
  if (base != DType::F32) return std::nullopt;
  // The exponents of real models are small constants.
  if (const std::optional<double> constant = constant_scalar(graph, op.inputs[1])) {
    if (*constant == 2.0) return "elements::square($1)";
    if (*constant == 3.0) return "elements::cube($1)";
    if (const auto rounded = static_cast<float>(*constant); static_cast<double>(rounded) == *constant)
      return "math::pow($1, " + float_literal(rounded) + ")";
  }
  if (!fits_float(exponent)) return std::nullopt;
  return "math::pow($1, static_cast<float>($2))";
}

std::string int64_literal(int64_t value) {
  if (value == std::numeric_limits<int64_t>::min()) return "(-9223372036854775807ll - 1)";
  return std::to_string(value) + "ll";
}

// A bound beyond int64's range does not bind.
int64_t whole_bound(double bound, int64_t otherwise) {
  constexpr double kEdge = 9223372036854775808.0;
  return bound >= -kEdge && bound < kEdge ? static_cast<int64_t>(bound) : otherwise;
}

std::optional<std::string> clip_pattern(const dag::Op& op, DType dtype) {
  const double low = op.attributes.get_double(Attr::Min, -kInfinity),
               high = op.attributes.get_double(Attr::Max, kInfinity);
  if (dtype == DType::F32)
    return "elements::clipped($1, " + float_literal(static_cast<float>(low)) + ", " +
           float_literal(static_cast<float>(high)) + ")";
  if (!dag::is_integer(dtype) || dtype == DType::U64) return std::nullopt;
  return "elements::clipped_whole($1, " +
         int64_literal(whole_bound(std::ceil(low), std::numeric_limits<int64_t>::min())) + ", " +
         int64_literal(whole_bound(std::floor(high), std::numeric_limits<int64_t>::max())) + ")";
}

std::string dropout_pattern(const dag::Op& op) {
  const double ratio = op.attributes.get_double(Attr::Ratio);  // below 1
  const auto threshold = static_cast<uint32_t>(ratio * 4294967296.0);
  return "$D >= " + std::to_string(threshold) + "u ? $1 * " +
         float_literal(static_cast<float>(1 / (1 - ratio))) + " : 0.0f";
}

std::optional<std::string> as_pattern(const char* pattern) {
  if (pattern == nullptr) return std::nullopt;
  return pattern;
}

std::optional<std::string> pattern_of(const dag::Graph& graph, const dag::Op& op) {
  const DType dtype = graph.spec(op.inputs[0]).dtype;
  switch (op.kind) {
    case OpKind::Cast:
      return "elements::converted<$T>($1)";
    case OpKind::Where:
      return "$1 ? $2 : $3";
    case OpKind::Pow:
      return pow_pattern(graph, op);
    case OpKind::Clip:
      return clip_pattern(op, dtype);
    case OpKind::Dropout:
      if (dtype != DType::F32) return std::nullopt;
      return dropout_pattern(op);
    default:
      break;
  }
  if (dtype == DType::F32) return as_pattern(op.inputs.size() == 1 ? float_unary(op) : float_binary(op));
  if (dtype == DType::Bool) return as_pattern(on_bools(op.kind));
  return dag::is_integer(dtype) ? as_pattern(on_integers(op)) : std::nullopt;
}

}  // namespace

std::string_view memory_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "float";
    case DType::F64:
      return "double";
    case DType::F16:
      return "elements::Half";
    case DType::BF16:
      return "elements::Brain";
    case DType::I8:
      return "int8_t";
    case DType::U8:
    case DType::Bool:
      return "uint8_t";
    case DType::I16:
      return "int16_t";
    case DType::U16:
      return "uint16_t";
    case DType::I32:
      return "int32_t";
    case DType::U32:
      return "uint32_t";
    case DType::I64:
      return "int64_t";
    case DType::U64:
      return "uint64_t";
  }
  return "void";
}

std::string_view register_type(DType dtype) { return dtype == DType::Bool ? "bool" : memory_type(dtype); }

std::string float_literal(float value) {
  char text[64];
  std::snprintf(text, sizeof text, "math::from_bits(static_cast<int32_t>(0x%08xu))",
                std::bit_cast<uint32_t>(value));
  return text;
}

std::optional<std::string> element_expression(const dag::Graph& graph, const dag::Op& op,
                                              std::span<const std::string> operands, std::string_view draw) {
  const std::optional<std::string> pattern = pattern_of(graph, op);
  if (!pattern) return std::nullopt;
  std::string expression;
  for (size_t i = 0; i < pattern->size(); ++i) {
    const char c = (*pattern)[i];
    if (c != '$') {
      expression += c;
      continue;
    }
    const char what = (*pattern)[++i];
    if (what == 'D')
      expression += draw;
    else if (what == 'T')
      expression += register_type(graph.spec(op.outputs[0]).dtype);
    else
      expression += operands[static_cast<size_t>(what - '1')];
  }
  return expression;
}

}  // namespace weft::peer::cuda
