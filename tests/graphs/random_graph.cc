#include "tests/graphs/random_graph.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "dag/op_table.h"
#include "tests/dag/op_cases.h"

namespace weft::test {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::Differentiability;
using dag::DType;
using dag::Family;
using dag::InitializerRole;
using dag::Ints;
using dag::OpKind;
using dag::OutputRole;
using dag::Shape;
using dag::Tensor;
using dag::TensorSpec;
using dag::ValueId;

constexpr int64_t kElementsMost = 6000;  // of a value: the reference is slow

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : seed_(seed), rng_(seed, 0x6AF4), builder_(dag::op_table()) {}

  Model run() {
    add_sources();
    const uint64_t steps = 6 + rng_.below(18);
    for (uint64_t i = 0; i < steps; ++i) step();
    add_loss();
    model_.graph = builder_.finish();
    return std::move(model_);
  }

 private:
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_.below(static_cast<uint64_t>(high - low + 1)));
  }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + rng_.below(list.size()));
  }
  const TensorSpec& spec(ValueId v) const { return builder_.graph().spec(v); }

  // ---- leaves ----

  Tensor draw(const Shape& shape, double deviation = 1) {
    return random_tensor(seed_, next_stream_++, shape, deviation);
  }
  ValueId input(const Tensor& tensor) {
    const std::string name = "x" + std::to_string(model_.inputs.size());
    model_.inputs.emplace(name, tensor);
    return builder_.input(name, tensor.spec());
  }
  ValueId initializer(const Tensor& tensor, InitializerRole role = InitializerRole::Parameter) {
    const std::string name = "w" + std::to_string(model_.weights.size());
    model_.weights.emplace(name, tensor);
    return builder_.initializer(name, tensor.spec(),
                                is_float(tensor.dtype()) ? role : InitializerRole::Buffer);
  }
  ValueId parameter(const Shape& shape, double deviation = 0.5) {
    return initializer(draw(shape, deviation));
  }

  void add_sources() {
    const int64_t n = kRandomGraphBatch;
    // Channels that fill blocks, that fill some, and that fill none.
    const int64_t channels = one_of<int64_t>({1, 3, 8, 12, 16, 24, 32}), size = between(2, 7);
    pool_.push_back(input(draw({n, channels, size, between(2, 7)})));
    if (rng_.below(2) == 0) pool_.push_back(input(draw({n, between(2, 6), one_of<int64_t>({8, 16, 5})})));
    if (rng_.below(3) == 0) pool_.push_back(input(draw({n, 8, between(2, 4), between(2, 4), between(2, 3)})));
    ground_ = parameter({between(1, 8)});
    pool_.push_back(ground_);
  }

  // ---- steps ----

  void step() {
    const uint64_t dice = rng_.below(100);
    if (dice < 45) return elementwise();
    if (dice < 80) return layer();
    graft();
  }

  ValueId pick() { return pool_[rng_.below(pool_.size())]; }
  std::optional<ValueId> pick_float() {
    for (int tries = 0; tries < 16; ++tries)
      if (const ValueId v = pick(); spec(v).dtype == DType::F32) return v;
    return std::nullopt;
  }
  // Of that rank; a float.
  std::optional<ValueId> pick_rank(int64_t rank) {
    for (int tries = 0; tries < 16; ++tries)
      if (const ValueId v = pick(); spec(v).dtype == DType::F32 && spec(v).rank() == rank) return v;
    return std::nullopt;
  }

  // Appends when the op's rule accepts and the result is small.
  std::optional<ValueId> append(OpKind kind, std::vector<ValueId> operands, Attributes attributes = {}) {
    std::vector<const TensorSpec*> specs;
    for (const ValueId operand : operands) specs.push_back(operand.valid() ? &spec(operand) : nullptr);
    const dag::OpRow& row = dag::op_table().row(kind);
    if (row.infer == nullptr) return std::nullopt;
    const auto outputs = row.infer(dag::ShapeContext{specs, attributes});
    if (!outputs) return std::nullopt;
    for (const TensorSpec& output : *outputs)
      if (output.element_count() > kElementsMost) return std::nullopt;
    auto values = builder_.try_add(kind, std::move(operands), std::move(attributes));
    if (!values) return std::nullopt;
    for (const ValueId value : *values) pool_.push_back(value);
    return values->front();
  }

  // ---- elementwise ops of every row ----

  Attributes elementwise_attributes(OpKind kind) {
    switch (kind) {
      case OpKind::Cast:
        return {
            {Attr::DType, static_cast<int64_t>(one_of({DType::F32, DType::Bool, DType::I64, DType::I32,
                                                       DType::F16, DType::BF16, DType::F64, DType::U8}))}};
      case OpKind::Clip:
        return {{Attr::Min, -0.4}, {Attr::Max, 0.7}};
      case OpKind::Gelu:
        return {{Attr::Approximate, between(0, 1)}};
      case OpKind::Mod:
        return {{Attr::Fmod, int64_t{1}}};
      default:
        return {};
    }
  }

  // `v` squeezed into where the op is defined and tame.
  ValueId tamed(OpKind kind, ValueId v) {
    if (spec(v).dtype != DType::F32) return v;
    const auto sigmoid_plus = [&](double offset) {
      return builder_.add(OpKind::Add,
                          {builder_.add(OpKind::Sigmoid, {v}), builder_.scalar(DType::F32, offset)});
    };
    switch (kind) {
      case OpKind::Log:
      case OpKind::Sqrt:
      case OpKind::Reciprocal:
      case OpKind::Div:
      case OpKind::Pow:
      case OpKind::Mod:
        return sigmoid_plus(0.6);
      case OpKind::Acosh:
        return sigmoid_plus(1.2);
      case OpKind::Asin:
      case OpKind::Acos:
      case OpKind::Atanh:
        return builder_.add(OpKind::Mul, {builder_.add(OpKind::Tanh, {v}), builder_.scalar(DType::F32, 0.8)});
      case OpKind::Exp:
      case OpKind::Sinh:
      case OpKind::Cosh:
      case OpKind::Tan:
      case OpKind::Mul:
        return builder_.add(OpKind::Tanh, {v});
      default:
        return v;
    }
  }

  void elementwise() {
    for (int tries = 0; tries < 24; ++tries) {
      const auto rows = dag::op_table().rows();
      const dag::OpRow& row = rows[rng_.below(rows.size())];
      if (row.family != Family::Elementwise || row.differentiability == Differentiability::Refused) continue;
      const ValueId first = pick();
      std::vector<ValueId> operands;
      for (int i = 0; i < row.inputs_min; ++i) operands.push_back(tamed(row.kind, companion(first, i)));
      if (append(row.kind, std::move(operands), elementwise_attributes(row.kind))) return;
    }
  }

  // Something to compute with `first`: itself, a value of its shape, one that broadcasts, a number.
  ValueId companion(ValueId first, int i) {
    if (i == 0) return first;
    for (int tries = 0; tries < 12; ++tries) {
      const ValueId other = pick();
      if (spec(other).shape == spec(first).shape || spec(other).element_count() == 1) return other;
    }
    const TensorSpec& like = spec(first);
    if (like.dtype != DType::F32) return first;
    switch (rng_.below(3)) {
      case 0:
        return builder_.scalar(DType::F32, 0.3);
      case 1: {  // one a channel
        Shape shape = like.shape;
        for (size_t d = 0; d < shape.size(); ++d)
          if (d != 1) shape[d] = 1;
        return parameter(shape);
      }
      default:
        return first;
    }
  }

  // ---- layers ----

  void layer() {
    switch (rng_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return convolution();
      case 4:
        return batch_norm();
      case 5:
        return pooling();
      case 6:
        return linear();
      case 7:
        return reduction();
      case 8:
        return transpose();
      case 9:
        return slice();
      case 10:
        return concat();
      case 11:
        return reshape();
      case 12:
        return softmax_or_norm();
      case 13:
        return gather();
      case 14:
        return pad();
      default:
        return over_space();
    }
  }

  void convolution() {
    const auto x = pick_rank(one_of<int64_t>({4, 4, 4, 4, 5, 3}));
    if (!x) return;
    const Shape shape = spec(*x).shape;
    const size_t dims = shape.size() - 2;
    const int64_t channels = shape[1];
    int64_t groups = one_of<int64_t>({1, 1, 1, 2, 4, channels});
    if (channels % groups != 0) groups = 1;
    int64_t filters = one_of<int64_t>({8, 16, 24, 5, 32, channels});
    filters = std::max<int64_t>(1, filters / groups) * groups;
    Shape w{filters, channels / groups};
    Ints strides, dilations, pads;
    for (size_t d = 0; d < dims; ++d) {
      w.push_back(one_of<int64_t>({1, 3, 3, 2}));
      strides.push_back(one_of<int64_t>({1, 1, 2, 3}));
      dilations.push_back(one_of<int64_t>({1, 1, 1, 2}));
    }
    for (size_t d = 0; d < 2 * dims; ++d) pads.push_back(between(0, 1));
    std::vector<ValueId> operands{*x, parameter(w, 0.3)};
    if (rng_.below(2) == 0) operands.push_back(parameter({filters}));
    append(
        OpKind::Conv, std::move(operands),
        {{Attr::Strides, strides}, {Attr::Dilations, dilations}, {Attr::Pads, pads}, {Attr::Groups, groups}});
  }

  void batch_norm() {
    const auto x = pick_rank(4);
    if (!x || spec(*x).element_count() == 0) return;
    const int64_t c = spec(*x).shape[1];
    const auto y = append(OpKind::BatchNorm, {*x, parameter({c}), parameter({c})}, {{Attr::Epsilon, 1e-3}});
    if (!y) return;
    const ValueId mean = builder_.graph().producer(*y).outputs[1];
    const ValueId running = initializer(draw({c}), InitializerRole::RunningStatistic);
    const std::string name = builder_.graph().value(running).name;
    const ValueId kept = builder_.add(OpKind::Mul, {running, builder_.scalar(DType::F32, 0.9)});
    const ValueId fresh = builder_.add(OpKind::Mul, {mean, builder_.scalar(DType::F32, 0.1)});
    builder_.output(name, builder_.add(OpKind::Add, {kept, fresh}), OutputRole::StateUpdate);
  }

  void pooling() {
    const auto x = pick_rank(one_of<int64_t>({4, 4, 5, 3}));
    if (!x) return;
    const size_t dims = spec(*x).shape.size() - 2;
    Ints kernel, strides, pads(2 * dims, 0);
    for (size_t d = 0; d < dims; ++d) {
      kernel.push_back(between(1, 3));
      strides.push_back(between(1, 2));
      pads[d] = std::min<int64_t>(kernel[d] - 1, between(0, 1));
    }
    Attributes attributes{{Attr::Kernel, kernel},
                          {Attr::Strides, strides},
                          {Attr::Pads, pads},
                          {Attr::CeilMode, between(0, 1)}};
    if (rng_.below(2) == 0) {
      append(OpKind::MaxPool, {*x}, attributes);
    } else {
      attributes.set(Attr::CountIncludePad, between(0, 1));
      append(OpKind::AveragePool, {*x}, attributes);
    }
  }

  void linear() {
    const auto x = pick_float();
    if (!x || spec(*x).rank() < 2) return;
    append(OpKind::MatMul, {*x, parameter({spec(*x).shape.back(), between(1, 16)}, 0.3)});
  }

  void reduction() {
    const auto x = pick_float();
    if (!x || spec(*x).rank() == 0) return;
    Ints axes;
    for (int64_t d = 0; d < spec(*x).rank(); ++d)
      if (rng_.below(2) == 0) axes.push_back(d);
    append(one_of({OpKind::ReduceSum, OpKind::ReduceMean, OpKind::ReduceMax, OpKind::ReduceMin}), {*x},
           {{Attr::Axes, axes}, {Attr::KeepDims, between(0, 1)}});
  }

  // A mean over space and its way back: squeeze and excitation.
  void over_space() {
    const auto x = pick_rank(4);
    if (!x) return;
    const Shape shape = spec(*x).shape;
    const auto mean =
        append(OpKind::ReduceMean, {*x}, {{Attr::Axes, Ints{2, 3}}, {Attr::KeepDims, int64_t{1}}});
    if (!mean) return;
    const auto wide = append(OpKind::Expand, {*mean}, {{Attr::Shape, shape}});
    if (wide)
      append(one_of({OpKind::Mul, OpKind::Add, OpKind::GreaterEqual}), {tamed(OpKind::Mul, *x), *wide});
  }

  void transpose() {
    const ValueId x = pick();
    Ints perm(spec(x).shape.size());
    for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
    for (size_t d = perm.size(); d > 1; --d) std::swap(perm[d - 1], perm[rng_.below(d)]);
    append(OpKind::Transpose, {x}, {{Attr::Perm, perm}});
  }

  void slice() {
    const ValueId x = pick();
    Ints starts, sizes, steps;
    for (const int64_t dim : spec(x).shape) {
      const int64_t size = dim == 0 ? 0 : between(1, dim),
                    start = between(0, std::max<int64_t>(0, dim - size));
      const bool backwards = size > 1 && rng_.below(4) == 0;
      starts.push_back(backwards ? start + size - 1 : start);
      sizes.push_back(size);
      steps.push_back(backwards ? -1 : 1);
    }
    append(OpKind::Slice, {x}, {{Attr::Starts, starts}, {Attr::Sizes, sizes}, {Attr::Steps, steps}});
  }

  void concat() {
    const ValueId x = pick();
    if (spec(x).rank() == 0) return;
    std::vector<ValueId> operands{x, x};
    for (int tries = 0; tries < 8; ++tries)
      if (const ValueId other = pick(); spec(other) == spec(x)) operands[1] = other;
    append(OpKind::Concat, std::move(operands), {{Attr::Axis, between(0, spec(x).rank() - 1)}});
  }

  void reshape() {
    const ValueId x = pick();
    Shape shape = spec(x).shape;
    if (shape.size() > 1 && rng_.below(2) == 0) {  // two dims made one
      const size_t d = rng_.below(shape.size() - 1);
      shape[d] *= shape[d + 1];
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(d) + 1);
    } else if (shape.size() < 5) {
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(rng_.below(shape.size() + 1)), 1);
    }
    append(OpKind::Reshape, {x}, {{Attr::Shape, shape}});
  }

  void softmax_or_norm() {
    const auto x = pick_float();
    if (!x || spec(*x).rank() == 0 || spec(*x).element_count() == 0) return;
    const int64_t axis = between(0, spec(*x).rank() - 1);
    if (rng_.below(2) == 0) {
      append(one_of({OpKind::Softmax, OpKind::LogSoftmax}), {*x}, {{Attr::Axis, axis}});
      return;
    }
    const Shape normalised(spec(*x).shape.begin() + axis, spec(*x).shape.end());
    append(OpKind::LayerNorm, {*x, parameter(normalised), parameter(normalised)},
           {{Attr::Axis, axis}, {Attr::Epsilon, 1e-3}});
  }

  void gather() {
    const auto x = pick_float();
    if (!x || spec(*x).rank() == 0) return;
    const int64_t axis = between(0, spec(*x).rank() - 1), size = spec(*x).shape[static_cast<size_t>(axis)];
    if (size == 0) return;
    std::vector<int64_t> places;
    for (int64_t i = 0; i < between(1, 5); ++i) places.push_back(between(-size, size - 1));
    const TensorSpec indices{one_of({DType::I64, DType::I32}), {static_cast<int64_t>(places.size())}};
    append(OpKind::Gather, {*x, builder_.constant(dag::from_int64s(indices, places))}, {{Attr::Axis, axis}});
  }

  void pad() {
    const auto x = pick_float();
    if (!x || spec(*x).rank() == 0) return;
    Ints pads;
    for (size_t d = 0; d < 2 * spec(*x).shape.size(); ++d) pads.push_back(between(-1, 1));
    append(OpKind::Pad, {*x},
           {{Attr::Pads, pads},
            {Attr::Mode, one_of<std::string>({"constant", "edge", "reflect"})},
            {Attr::Value, 0.0}});
  }

  // ---- the cases of every op ----

  // `count` elements of a value of the graph, as small numbers of shape `shape`.
  std::optional<ValueId> trace_of(ValueId v, const Shape& shape) {
    const int64_t count = TensorSpec{DType::F32, shape}.element_count();
    const int64_t have = spec(v).element_count();
    if (have == 0 || count == 0) return std::nullopt;
    ValueId x = builder_.add(OpKind::Tanh, {v});
    x = builder_.add(OpKind::Mul, {x, builder_.scalar(DType::F32, 0.004)});
    x = builder_.add(OpKind::Reshape, {x}, {{Attr::Shape, Ints{have}}});
    if (have >= count) {
      x = builder_.add(OpKind::Slice, {x},
                       {{Attr::Starts, Ints{0}}, {Attr::Sizes, Ints{count}}, {Attr::Steps, Ints{1}}});
    } else {
      x = builder_.add(OpKind::ReduceMean, {x}, {{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{1}}});
      x = builder_.add(OpKind::Expand, {x}, {{Attr::Shape, Ints{count}}});
    }
    return builder_.add(OpKind::Reshape, {x}, {{Attr::Shape, shape}});
  }

  void graft() {
    if (cases_.empty()) cases_ = dag::all_op_cases(seed_);
    for (int tries = 0; tries < 24; ++tries) {
      const dag::OpCase& op_case = cases_[rng_.below(cases_.size())];
      const dag::OpRow& row = dag::op_table().row(op_case.kind);
      if (row.differentiability == Differentiability::Refused || row.family == Family::Leaf) continue;
      std::vector<ValueId> operands;
      for (size_t i = 0; i < op_case.inputs.size(); ++i)
        operands.push_back(op_case.inputs[i] ? grafted(op_case, *op_case.inputs[i]) : ValueId{});
      append(op_case.kind, std::move(operands), op_case.attributes);
      return;
    }
  }

  ValueId grafted(const dag::OpCase& op_case, const Tensor& tensor) {
    if (tensor.dtype() != DType::F32) return builder_.constant(tensor);
    const std::vector<double> values = dag::to_doubles(tensor);
    if (std::any_of(values.begin(), values.end(), [](double v) { return !std::isfinite(v); }))
      return input(tensor);  // no weight may be NaN
    const ValueId own = rng_.below(2) == 0 ? initializer(tensor) : builder_.constant(tensor);
    const auto from = pick_float();
    if (!from || !op_case.smooth) return own;
    const auto trace = trace_of(*from, tensor.shape());
    return trace ? builder_.add(OpKind::Add, {own, *trace}) : own;
  }

  // ---- the loss ----

  // Every float that nobody reads, squashed, weighted and summed.
  void add_loss() {
    const auto users = builder_.graph().users();
    std::optional<ValueId> total;
    const std::vector<ValueId> pool = pool_;
    for (const ValueId value : pool) {
      if (spec(value).dtype != DType::F32 || spec(value).element_count() == 0 || !users[value.index].empty())
        continue;
      ValueId term = builder_.add(OpKind::Tanh, {value});
      term = builder_.add(OpKind::Mul, {term, builder_.constant(draw(spec(value).shape))});
      Ints axes;
      for (int64_t d = 0; d < spec(term).rank(); ++d) axes.push_back(d);
      term = builder_.add(OpKind::ReduceSum, {term}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}});
      total = total ? builder_.add(OpKind::Add, {*total, term}) : term;
    }
    // A parameter that reaches the loss in any case.
    ValueId ground = builder_.add(OpKind::Mul, {ground_, ground_});
    Ints axes;
    for (int64_t d = 0; d < spec(ground).rank(); ++d) axes.push_back(d);
    ground = builder_.add(OpKind::ReduceMean, {ground}, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}});
    total = total ? builder_.add(OpKind::Add, {*total, ground}) : ground;
    builder_.output("loss", *total, OutputRole::Loss);
  }

  uint64_t seed_;
  Rng rng_;
  dag::GraphBuilder builder_;
  Model model_;
  std::vector<ValueId> pool_;
  ValueId ground_;
  std::vector<dag::OpCase> cases_;
  uint64_t next_stream_ = 1;
};

}  // namespace

Model random_graph(uint64_t seed) { return RandomGraph(seed).run(); }

}  // namespace weft::test
