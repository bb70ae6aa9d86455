#include "tests/dag/op_cases.h"

#include "dag/op_table.h"
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

void add_unary_cases(OpCaseMaker& make) {
  struct Domain {
    OpKind kind;
    double low, high;
  };
  const Domain domains[] = {
      {OpKind::Neg, -2, 2},      {OpKind::Exp, -2, 2},         {OpKind::Log, 0.5, 3},
      {OpKind::Sqrt, 0.5, 3},    {OpKind::Sin, -3, 3},         {OpKind::Cos, -3, 3},
      {OpKind::Tan, -1, 1},      {OpKind::Asin, -0.8, 0.8},    {OpKind::Acos, -.8, .8},
      {OpKind::Atan, -2, 2},     {OpKind::Sinh, -2, 2},        {OpKind::Cosh, -2, 2},
      {OpKind::Asinh, -2, 2},    {OpKind::Acosh, 1.5, 3},      {OpKind::Atanh, -.8, .8},
      {OpKind::Tanh, -2, 2},     {OpKind::Erf, -2, 2},         {OpKind::Sigmoid, -3, 3},
      {OpKind::Softplus, -4, 4}, {OpKind::Reciprocal, 0.5, 2}, {OpKind::Floor, -3, 3},
      {OpKind::Ceil, -3, 3},     {OpKind::Round, -3, 3},
  };
  for (const auto& [kind, low, high] : domains) {
    make.add(kind, "", {make.real(make.shape(make.between(1, 4)), low, high)});
    make.add(kind, "scalar", {make.real({}, low, high)});
  }
  for (const OpKind kind : {OpKind::Abs, OpKind::Sign, OpKind::Relu})
    make.add(kind, "", {make.apart(make.shape(3))});
  for (const int64_t approximate : {0, 1})
    make.add(OpKind::Gelu, approximate ? "tanh" : "erf", {make.real(make.shape(2, 6), -3, 3)},
             {{Attr::Approximate, approximate}});
  make.add(OpKind::Softplus, "far out", {make.floats({4}, {-50, -20, 20, 50})});
  make.add(OpKind::Round, "halves", {make.floats({6}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5})});
  // Flat where its gradient is not: differences do not see what it lets through.
  make.add(OpKind::RoundThrough, "", {make.real(make.shape(3), -3, 3)}).smooth = false;
  make.add(OpKind::Not, "", {make.boolean(make.shape(2))});
  const Tensor odd = make.floats({5}, {0, 1, std::nan(""), HUGE_VAL, -HUGE_VAL});
  make.add(OpKind::IsNaN, "", {odd});
  make.add(OpKind::IsInf, "", {odd});
  make.add(OpKind::Neg, "integers", {make.whole({5}, -9, 9)});
  make.add(OpKind::Abs, "integers", {make.whole({5}, -9, 9)});
}

void add_cast_and_clip_cases(OpCaseMaker& make) {
  const auto to = [](DType dtype) { return Attributes{{Attr::DType, static_cast<int64_t>(dtype)}}; };
  make.add(OpKind::Cast, "f32 to f64", {make.real({2, 3})}, to(DType::F64));
  for (const DType dtype :
       {DType::F16, DType::BF16, DType::F32, DType::I64, DType::I8, DType::U8, DType::Bool})
    make.add(OpKind::Cast, "f32 to " + std::string(to_string(dtype)), {make.real({2, 5}, -9, 9)}, to(dtype))
        .smooth = false;
  for (const DType half : {DType::F16, DType::BF16})
    for (const DType dtype : {DType::F16, DType::BF16, DType::F32, DType::F64, DType::I64, DType::I32,
                              DType::I16, DType::I8, DType::U8, DType::Bool}) {
      const Tensor reals = make.real({2, 5}, -9, 9), wholes = make.whole({2, 5}, 0, 127, dtype);
      const Tensor halves = from_doubles({half, {2, 5}}, to_doubles(reals));
      const std::string name(to_string(half)), other(to_string(dtype));
      make.add(OpKind::Cast, name + " to " + other, {halves}, to(dtype)).smooth = false;
      if (!is_float(dtype)) make.add(OpKind::Cast, other + " to " + name, {wholes}, to(half));
    }
  make.add(OpKind::Cast, "f32 to f16 far out",
           {make.floats({9}, {0, -0.0, 1e9, -1e9, 65519, 65520, 3e-8, 6.1e-5, std::nan("")})}, to(DType::F16))
      .smooth = false;
  for (const DType half : {DType::F16, DType::BF16}) {
    const std::string name(to_string(half));
    make.add(OpKind::RoundToHalf, "to " + name, {make.real({3, 50}, -9, 9)}, to(half)).smooth = false;
    make.add(OpKind::RoundToHalf, "to " + name + " far out",
             {make.floats(
                 {12}, {0, -0.0, 1e9, -1e9, 65519, 65520, 2049, 2051, 3e-8, -4.5e-8, 6.1e-5, std::nan("")})},
             to(half))
        .smooth = false;
  }
  const Tensor beyond =
      make.floats({9}, {-1e30, -2147483648.0, -129, -128.9, -0.7, 127.9, 128, 255.5, std::nan("")});
  for (const DType dtype : {DType::I64, DType::I32, DType::I8, DType::U8, DType::Bool}) {
    make.add(OpKind::Cast, "saturating f32 to " + std::string(to_string(dtype)), {beyond}, to(dtype)).smooth =
        false;
    for (const DType from : {DType::I64, DType::I32, DType::I8, DType::U8})
      make.add(OpKind::Cast, std::string(to_string(from)) + " wrapping to " + std::string(to_string(dtype)),
               {make.whole({9}, -300, 300, from)}, to(dtype));
  }
  make.add(OpKind::Cast, "i64 to f32", {make.whole({2, 3}, -99, 99)}, to(DType::F32));
  make.add(OpKind::Cast, "i64 to i32", {make.whole({2, 3}, -99, 99)}, to(DType::I32));
  make.add(OpKind::Cast, "bool to f32", {make.boolean({7})}, to(DType::F32));
  // Bounds on multiples of 0.1, which apart() keeps away from.
  make.add(OpKind::Clip, "both", {make.apart({3, 4})}, {{Attr::Min, -0.3}, {Attr::Max, 0.2}});
  make.add(OpKind::Clip, "min", {make.apart({7})}, {{Attr::Min, -0.1}});
  make.add(OpKind::Clip, "max", {make.apart({7})}, {{Attr::Max, 0.1}});
  make.add(OpKind::Clip, "none", {make.apart({3})});
}

// Pairs of shapes that broadcast: equal, a scalar, a row, a column, both stretched.
std::vector<std::pair<Shape, Shape>> broadcast_pairs(OpCaseMaker& make) {
  const Shape s = make.shape(3);
  return {{s, s}, {s, {}}, {{}, s}, {s, {s[2]}}, {{s[1], 1}, s}, {{s[0], 1, s[2]}, {s[1], 1}}};
}

void add_binary_cases(OpCaseMaker& make) {
  for (const OpKind kind :
       {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Pow, OpKind::Min, OpKind::Max}) {
    int variant = 0;
    for (const auto& [a, b] : broadcast_pairs(make)) {
      const bool positive = kind == OpKind::Pow || kind == OpKind::Div;
      const bool kinked = kind == OpKind::Min || kind == OpKind::Max;
      // Any two of these differ by 0.03 at the least: multiples of 0.1 with a little noise against odd
      // multiples of 0.05.
      const Tensor left = kinked ? make.apart(a) : positive ? make.real(a, 0.5, 2) : make.real(a);
      Tensor right = positive ? make.real(b, 0.5, 2) : make.real(b);
      if (kinked) {
        auto tenths = to_doubles(make.whole(b, -5, 5));
        for (double& value : tenths) value = value / 10;
        right = from_doubles({DType::F32, b}, tenths);
      }
      make.add(kind, "broadcast " + std::to_string(variant++), {left, right});
    }
  }
  const Tensor same = make.real({3, 2});
  make.add(OpKind::Max, "ties", {same, same});
  make.add(OpKind::Min, "ties", {same, same});
  make.add(OpKind::Pow, "zero base", {make.floats({4}, {0, 0, 0.5, -1.5}), make.whole({4}, 0, 3)});
  make.add(OpKind::Pow, "zero base, float exponent", {make.floats({2}, {0, 0}), make.floats({2}, {2, 3})});
  make.add(OpKind::Add, "empty", {make.real({0, 3}), make.real({3})});

  // a = b (q + fraction) with the fraction far from 0 and 1.
  const Tensor divisor = make.real({3, 4}, 1, 2);
  auto dividend = to_doubles(make.real({3, 4}, 0.2, 0.8));
  const auto divisors = to_doubles(divisor), quotients = to_doubles(make.whole({3, 4}, -3, 3));
  for (size_t i = 0; i < dividend.size(); ++i) dividend[i] = divisors[i] * (quotients[i] + dividend[i]);
  for (const int64_t fmod : {0, 1})
    make.add(OpKind::Mod, fmod ? "C" : "Python", {from_doubles({DType::F32, {3, 4}}, dividend), divisor},
             {{Attr::Fmod, fmod}});
}

void add_integer_and_logic_cases(OpCaseMaker& make) {
  for (const OpKind kind :
       {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div, OpKind::Min, OpKind::Max, OpKind::Mod})
    for (const DType dtype : {DType::I64, DType::I32})
      make.add(kind, std::string(to_string(dtype)),
               {make.whole({2, 5}, -20, 20, dtype), make.whole({5}, 1, 6, dtype)});
  for (const DType dtype : {DType::I8, DType::U16, DType::I64}) {
    const std::string name(to_string(dtype));
    make.add(OpKind::BitNot, name, {make.whole({7}, 0, 100, dtype)});
    for (const OpKind kind : {OpKind::BitAnd, OpKind::BitOr, OpKind::BitXor})
      make.add(kind, name, {make.whole({2, 5}, 0, 100, dtype), make.whole({5}, 0, 100, dtype)});
  }
  for (const DType dtype : {DType::U8, DType::U16, DType::U32, DType::U64})
    for (const OpKind kind : {OpKind::ShiftLeft, OpKind::ShiftRight})
      make.add(kind, std::string(to_string(dtype)),
               {make.whole({2, 5}, 0, 255, dtype), make.whole({5}, 0, 70, dtype)});
  for (const OpKind kind : {OpKind::And, OpKind::Or, OpKind::Xor})
    make.add(kind, "", {make.boolean({2, 5}), make.boolean({5})});
  for (const OpKind kind :
       {OpKind::Equal, OpKind::Less, OpKind::LessEqual, OpKind::Greater, OpKind::GreaterEqual}) {
    make.add(kind, "integers", {make.whole({3, 4}, 0, 3), make.whole({4}, 0, 3)});
    make.add(kind, "floats", {make.real({3, 1}), make.real({4})});
  }
  make.add(OpKind::Where, "same shape", {make.boolean({3, 4}), make.real({3, 4}), make.real({3, 4})});
  make.add(OpKind::Where, "broadcast", {make.boolean({4, 1}), make.real({2, 1, 3}), make.real({3})});
  make.add(OpKind::Where, "scalar", {make.boolean({3, 4}), make.real({3, 4}), make.real({})});
  make.add(OpKind::Where, "integers", {make.boolean({3, 4}), make.whole({3, 4}, 0, 9), make.whole({}, 0, 9)});
}

void add_gradient_op_cases(OpCaseMaker& make) {
  const Shape s = make.shape(3);
  make.add(OpKind::ReluGrad, "", {make.real(s), make.apart(s)});
  make.add(OpKind::TanhGrad, "", {make.real(s), make.real(s)});
  make.add(OpKind::SigmoidGrad, "", {make.real(s), make.real(s, 0, 1)});
  for (const int64_t approximate : {0, 1})
    make.add(OpKind::GeluGrad, approximate ? "tanh" : "erf", {make.real(s), make.real(s, -3, 3)},
             {{Attr::Approximate, approximate}});
}

}  // namespace

void add_elementwise_cases(OpCaseMaker& make) {
  add_unary_cases(make);
  add_cast_and_clip_cases(make);
  add_binary_cases(make);
  add_integer_and_logic_cases(make);
  add_gradient_op_cases(make);
}

std::vector<OpCase> all_op_cases(uint64_t seed) {
  OpCaseMaker make(seed);
  add_elementwise_cases(make);
  add_shape_cases(make);
  add_reduction_cases(make);
  add_matmul_cases(make);
  add_stored_cases(make);
  add_attention_cases(make);
  add_convolution_cases(make);
  add_normalisation_cases(make);
  add_softmax_cases(make);
  add_pooling_cases(make);
  add_random_cases(make);
  add_sampling_cases(make);
  add_recurrent_cases(make);
  return make.take();
}

OpCaseGraph build_op_case(const OpCase& op_case) {
  OpCaseGraph made{GraphBuilder(op_table()), {}, {}};
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const auto& input = op_case.inputs[i];
    made.inputs.push_back(input ? made.builder.input("operand" + std::to_string(i), input->spec())
                                : ValueId{});
  }
  made.outputs = made.builder.add_all(op_case.kind, made.inputs, op_case.attributes, op_case.name);
  return made;
}

}  // namespace weft::dag
