#include "tests/gpu/random_groups.h"

#include <iterator>
#include <string>

#include "base/rng.h"
#include "dag/op_table.h"

namespace weft::test {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::GraphBuilder;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using dag::TensorSpec;
using dag::ValueId;

constexpr int kOps = 16;
constexpr OpKind kOne[] = {OpKind::Neg,  OpKind::Abs,  OpKind::Exp,     OpKind::Sqrt,     OpKind::Sin,
                           OpKind::Tanh, OpKind::Relu, OpKind::Sigmoid, OpKind::Softplus, OpKind::Gelu,
                           OpKind::Erf,  OpKind::Atan, OpKind::Floor,   OpKind::Dropout};
constexpr OpKind kTwo[] = {OpKind::Add, OpKind::Sub,      OpKind::Mul,         OpKind::Div,     OpKind::Min,
                           OpKind::Max, OpKind::ReluGrad, OpKind::SigmoidGrad, OpKind::TanhGrad};
constexpr OpKind kCompare[] = {OpKind::Less, OpKind::LessEqual, OpKind::GreaterEqual, OpKind::Equal};

bool is_gradient(OpKind kind) {
  return kind == OpKind::ReluGrad || kind == OpKind::SigmoidGrad || kind == OpKind::TanhGrad;
}

// Uniform in [-2, 2).
Tensor draw(const Shape& shape, Rng& rng) {
  Tensor tensor(TensorSpec{DType::F32, shape});
  for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(4 * rng.uniform() - 2);
  return tensor;
}

class Maker {
 public:
  Maker(uint64_t seed, bool fused) : rng_(seed, 1), fused_(fused), builder_(dag::op_table()) {}

  dag::Graph make(std::vector<Tensor>& inputs) {
    const auto size = [this](uint64_t most) { return static_cast<int64_t>(1 + rng_.below(most)); };
    const Shape whole{size(4), size(40), size(130)};
    // Whole, and stretched along every part.
    for (const Shape& shape :
         {whole, whole, Shape{whole[2]}, Shape{whole[1], 1}, Shape{}, Shape{whole[0], 1, whole[2]}})
      add_input(shape, inputs);
    keep(builder_.add(OpKind::Add, {inputs_[0], inputs_[2]}));
    for (int i = 0; i < kOps; ++i) keep(add_op(i));
    builder_.output("last", made_.back(), dag::OutputRole::Prediction);
    builder_.output("middle", made_[made_.size() / 2], dag::OutputRole::Prediction);
    return builder_.finish();
  }

 private:
  template <typename Range>
  auto one_of(const Range& range) {
    return range[rng_.below(std::size(range))];
  }
  void add_input(const Shape& shape, std::vector<Tensor>& inputs) {
    inputs.push_back(draw(shape, rng_));
    inputs_.push_back(builder_.input("x" + std::to_string(inputs_.size()), inputs.back().spec()));
  }
  ValueId grouped(ValueId value) {
    if (fused_) builder_.set_group(builder_.graph().value(value).producer, dag::GroupId{0});
    return value;
  }
  void keep(ValueId value) { made_.push_back(grouped(value)); }

  // Its result is of the whole shape: `a` is.
  ValueId add_op(int number) {
    const ValueId a = one_of(made_), b = rng_.below(2) == 0 ? one_of(made_) : one_of(inputs_);
    switch (rng_.below(4)) {
      case 0: {
        const OpKind kind = one_of(kOne);
        if (kind == OpKind::Dropout)
          return builder_.add(kind, {a}, Attributes{{Attr::Ratio, 0.25}, {Attr::Key, int64_t{number}}});
        if (kind == OpKind::Gelu)
          return builder_.add(kind, {a},
                              Attributes{{Attr::Approximate, static_cast<int64_t>(rng_.below(2))}});
        return builder_.add(kind, {a});
      }
      case 1: {
        const OpKind kind = one_of(kTwo);
        return builder_.add(kind, {a, is_gradient(kind) ? one_of(made_) : b});
      }
      case 2:
        return builder_.add(OpKind::Where, {grouped(builder_.add(one_of(kCompare), {a, b})), b, a});
      default:
        return builder_.add(OpKind::Cast, {grouped(builder_.add(one_of(kCompare), {b, a}))},
                            {{Attr::DType, static_cast<int64_t>(DType::F32)}});
    }
  }

  Rng rng_;
  bool fused_;
  GraphBuilder builder_;
  std::vector<ValueId> inputs_, made_;
};

}  // namespace

RandomGroup random_group(uint64_t seed) {
  RandomGroup group;
  std::vector<Tensor> again;
  group.apart = Maker(seed, /*fused=*/false).make(group.inputs);
  group.fused = Maker(seed, /*fused=*/true).make(again);
  return group;
}

}  // namespace weft::test
