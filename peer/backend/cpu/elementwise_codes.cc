// Which loop computes an elementwise op on its operands' dtypes.
#include "peer/backend/cpu/elementwise_program.h"

namespace weft::peer::cpu {

using dag::Attr;
using dag::DType;
using dag::OpKind;

namespace {

// A scalar constant's value, where the operand is one.
std::optional<double> constant_scalar(const dag::Graph& graph, dag::ValueId value) {
  const dag::Op& producer = graph.producer(value);
  if (producer.kind != OpKind::Constant || graph.spec(value).element_count() != 1) return std::nullopt;
  return dag::to_doubles(graph.constant(producer))[0];
}

std::optional<ElementCode> float_unary(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Neg:
      return kNeg;
    case OpKind::Abs:
      return kAbs;
    case OpKind::Sign:
      return kSign;
    case OpKind::Exp:
      return kExp;
    case OpKind::Log:
      return kLog;
    case OpKind::Sqrt:
      return kSqrt;
    case OpKind::Reciprocal:
      return kReciprocal;
    case OpKind::Sin:
      return kSin;
    case OpKind::Cos:
      return kCos;
    case OpKind::Tan:
      return kTan;
    case OpKind::Asin:
      return kAsin;
    case OpKind::Acos:
      return kAcos;
    case OpKind::Atan:
      return kAtan;
    case OpKind::Sinh:
      return kSinh;
    case OpKind::Cosh:
      return kCosh;
    case OpKind::Asinh:
      return kAsinh;
    case OpKind::Acosh:
      return kAcosh;
    case OpKind::Atanh:
      return kAtanh;
    case OpKind::Tanh:
      return kTanh;
    case OpKind::Sigmoid:
      return kSigmoid;
    case OpKind::Relu:
      return kRelu;
    case OpKind::Erf:
      return kErf;
    case OpKind::Gelu:
      return op.attributes.get_int(Attr::Approximate) != 0 ? kGeluTanh : kGelu;
    case OpKind::Softplus:
      return kSoftplus;
    case OpKind::Floor:
      return kFloor;
    case OpKind::Ceil:
      return kCeil;
    case OpKind::Round:
    case OpKind::RoundThrough:
      return kRound;
    case OpKind::RoundToHalf:
      return op.attributes.get_int(Attr::DType) == static_cast<int64_t>(DType::F16) ? kRoundToF16
                                                                                    : kRoundToBF16;
    case OpKind::IsNaN:
      return kIsNaN;
    case OpKind::IsInf:
      return kIsInf;
    case OpKind::Clip:
      return kClip;
    case OpKind::Dropout:
      return kDropout;
    default:
      return std::nullopt;
  }
}

std::optional<ElementCode> float_binary(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Add:
      return kAdd;
    case OpKind::Sub:
      return kSub;
    case OpKind::Mul:
      return kMul;
    case OpKind::Div:
      return kDiv;
    case OpKind::Pow:
      return kPow;
    case OpKind::Min:
      return kMin;
    case OpKind::Max:
      return kMax;
    case OpKind::Mod:
      return op.attributes.get_int(Attr::Fmod) != 0 ? kModTruncate : kModFloor;
    case OpKind::Equal:
      return kEqual;
    case OpKind::Less:
      return kLess;
    case OpKind::LessEqual:
      return kLessEqual;
    case OpKind::Greater:
      return kGreater;
    case OpKind::GreaterEqual:
      return kGreaterEqual;
    case OpKind::RandomUniform:
      return kRandomUniform;
    case OpKind::RandomNormal:
      return kRandomNormal;
    case OpKind::ReluGrad:
      return kReluGrad;
    case OpKind::TanhGrad:
      return kTanhGrad;
    case OpKind::SigmoidGrad:
      return kSigmoidGrad;
    case OpKind::GeluGrad:
      return op.attributes.get_int(Attr::Approximate) != 0 ? kGeluTanhGrad : kGeluGrad;
    default:
      return std::nullopt;
  }
}

std::optional<ElementCode> on_bools(const dag::Op& op) {
  switch (op.kind) {
    case OpKind::Not:
      return kNotB;
    case OpKind::And:
      return kAndB;
    case OpKind::Or:
      return kOrB;
    case OpKind::Xor:
      return kXorB;
    case OpKind::Equal:
      return kEqualB;
    default:
      return std::nullopt;
  }
}

std::optional<ElementCode> on_integers(const dag::Op& op, bool wide) {
  const auto code = [wide](ElementCode narrow) {
    return static_cast<ElementCode>(narrow + (wide ? kNegI64 - kNegI32 : 0));
  };
  switch (op.kind) {
    case OpKind::Neg:
      return code(kNegI32);
    case OpKind::Abs:
      return code(kAbsI32);
    case OpKind::Sign:
      return code(kSignI32);
    case OpKind::Add:
      return code(kAddI32);
    case OpKind::Sub:
      return code(kSubI32);
    case OpKind::Mul:
      return code(kMulI32);
    case OpKind::Div:
      return code(kDivI32);
    case OpKind::Min:
      return code(kMinI32);
    case OpKind::Max:
      return code(kMaxI32);
    case OpKind::Mod:
      return code(op.attributes.get_int(Attr::Fmod) != 0 ? kRemainderI32 : kModI32);
    case OpKind::Equal:
      return code(kEqualI32);
    case OpKind::Less:
      return code(kLessI32);
    case OpKind::LessEqual:
      return code(kLessEqualI32);
    case OpKind::Greater:
      return code(kGreaterI32);
    case OpKind::GreaterEqual:
      return code(kGreaterEqualI32);
    default:
      return std::nullopt;
  }
}

int cast_index(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return 0;
    case DType::Bool:
      return 1;
    case DType::I32:
      return 2;
    case DType::I64:
      return 3;
    case DType::U8:
      return 4;
    case DType::F16:
      return 5;
    case DType::BF16:
      return 6;
    case DType::I8:
      return 7;
    default:
      return -1;
  }
}

}  // namespace

std::optional<ElementChoice> choose_element_loop(const dag::Graph& graph, const dag::Op& op) {
  const auto dtype = [&](size_t i) { return graph.spec(op.inputs[i]).dtype; };
  const auto choice = [&](std::optional<ElementCode> code) -> std::optional<ElementChoice> {
    if (!code) return std::nullopt;
    return ElementChoice{*code, static_cast<int>(op.inputs.size())};
  };
  if (op.kind == OpKind::Cast) {
    const int from = cast_index(dtype(0)), to = cast_index(graph.spec(op.outputs[0]).dtype);
    if (from < 0 || to < 0) return std::nullopt;
    return choice(static_cast<ElementCode>(kCastFirst + kCastTypes * from + to));
  }
  if (op.kind == OpKind::Where) {
    switch (dag::element_size(dtype(1))) {
      case 1:
        return choice(kWhere1);
      case 2:
        return choice(kWhere2);
      case 4:
        return choice(kWhere4);
      case 8:
        return choice(kWhere8);
      default:
        return std::nullopt;
    }
  }
  if (op.kind == OpKind::Pow) {
    // The exponents of real models are small constants.
    if (dtype(0) != DType::F32) return std::nullopt;
    const std::optional<double> exponent = constant_scalar(graph, op.inputs[1]);
    if (exponent == 2.0) return ElementChoice{kSquare, 1};
    if (exponent == 3.0) return ElementChoice{kCube, 1};
    return dtype(1) == DType::F32 ? choice(kPow) : std::nullopt;
  }
  switch (dtype(0)) {
    case DType::F32:
      return choice(op.inputs.size() == 1 ? float_unary(op) : float_binary(op));
    case DType::Bool:
      return choice(on_bools(op));
    case DType::I32:
      return choice(on_integers(op, /*wide=*/false));
    case DType::I64:
      return choice(on_integers(op, /*wide=*/true));
    default:
      return std::nullopt;
  }
}

}  // namespace weft::peer::cpu
