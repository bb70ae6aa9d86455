#include "tests/incremental/forms.h"

#include <cmath>
#include <limits>

namespace weft::incremental::testing {
namespace {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using V = Net::V;

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct KeysAndValues {
  V keys, values;  // [.., G, T, D]
};

class Writer {
 public:
  explicit Writer(const Form& form)
      : f_(form), net_(form.length, form.batch, form.seed), size_(form.width / form.head_count) {}

  Model run() {
    const V embedding = net_.weight({f_.vocabulary, f_.width});
    V x = net_.gather(embedding, net_.tokens());
    if (f_.positions == Positions::Learnt) x = net_.add(x, net_.weight({f_.length, f_.width}));
    for (int64_t layer = 0; layer < f_.layers; ++layer) x = block(x);
    x = norm(x);
    return net_.finish(f_.tied ? net_.matmul(x, embedding, false, true) : net_.linear(x, f_.vocabulary));
  }

 private:
  // ---- blocks ----

  V block(V x) {
    if (!f_.attends) return net_.add(x, mlp(norm(x)));
    const V before = norm(x);
    if (f_.parallel) return net_.add(net_.add(x, attention(before)), mlp(before));
    x = net_.add(x, attention(before));
    return f_.mlp == Mlp::None ? x : net_.add(x, mlp(norm(x)));
  }

  V norm(V x) {
    switch (f_.norm) {
      case Norm::Layer:
        return net_.layer_norm(x);
      case Norm::Rms: {
        const V mean = net_.reduce(OpKind::ReduceMean, net_.mul(x, x), -1);
        const V root = net_.op(OpKind::Sqrt, {net_.add(mean, net_.number(1e-5))});
        return net_.mul(net_.div(x, root), net_.weight({f_.width}, 0.2, 1));
      }
      case Norm::Batch: {
        const V channels = net_.transpose(net_.reshape(x, {1, f_.length, f_.width}), {0, 2, 1});
        std::vector<V> operands{channels};
        for (const double mean : {1.0, 0.0, 0.0, 4.0}) operands.push_back(net_.weight({f_.width}, 0.1, mean));
        const V y = net_.op(OpKind::BatchNormInference, operands, {{Attr::Epsilon, 1e-5}});
        return net_.reshape(net_.transpose(y, {0, 2, 1}), net_.shape(x));
      }
      default:
        return x;
    }
  }

  V gelu_tanh(V x) {
    const V cube = net_.mul(net_.mul(x, x), x);
    const V inner = net_.mul(net_.add(x, net_.mul(cube, net_.number(0.044715))), net_.number(0.7978845608));
    return net_.mul(net_.mul(x, net_.number(0.5)), net_.add(net_.op(OpKind::Tanh, {inner}), net_.number(1)));
  }
  V mlp(V x) {
    const int64_t inner = 2 * f_.width;
    switch (f_.mlp) {
      case Mlp::Gelu:
        return net_.linear(net_.op(OpKind::Gelu, {net_.linear(x, inner)}), f_.width);
      case Mlp::GeluTanh:
        return net_.linear(gelu_tanh(net_.linear(x, inner)), f_.width);
      case Mlp::SwiGlu: {
        const V gate = net_.linear(x, inner);
        const V open = net_.mul(gate, net_.op(OpKind::Sigmoid, {gate}));
        return net_.linear(net_.mul(open, net_.linear(x, inner)), f_.width);
      }
      case Mlp::Relu:
        return net_.linear(net_.op(OpKind::Relu, {net_.linear(x, inner)}), f_.width);
      case Mlp::Experts:
        return experts(x);
      default:
        return x;
    }
  }
  // The best two of four, by gates that are 0 for the others.
  V experts(V x) {
    const V flat = net_.reshape(x, {f_.length, f_.width});
    const V gates = net_.softmax(net_.linear(flat, 4), -1);
    const auto best =
        net_.ops(OpKind::TopK, {gates},
                 {{Attr::Axis, int64_t{1}}, {Attr::Count, int64_t{2}}, {Attr::Largest, int64_t{1}}});
    const V least = net_.reduce(OpKind::ReduceMin, best[0], 1);
    const V open = net_.where(net_.op(OpKind::GreaterEqual, {gates, least}), gates, net_.number(0));
    const V inner = net_.op(OpKind::Relu, {net_.matmul(flat, net_.weight({4, f_.width, 8}))});
    const V each = net_.matmul(inner, net_.weight({4, 8, f_.width}));
    const V weighted = net_.mul(each, net_.reshape(net_.transpose(open, {1, 0}), {4, f_.length, 1}));
    return net_.reshape(net_.reduce(OpKind::ReduceSum, weighted, 0, false), net_.shape(x));
  }

  // ---- attention ----

  bool has_prefix() const { return f_.layout != Layout::Folded; }
  bool is_turned() const { return f_.layout == Layout::Turned; }
  // A shape or a transpose of what has the heads in front, with a first dim of 1 or without.
  Shape with_prefix(Shape shape) const {
    if (has_prefix()) shape.insert(shape.begin(), 1);
    return shape;
  }
  Ints exchange_heads() const { return has_prefix() ? Ints{0, 2, 1, 3} : Ints{1, 0, 2}; }

  int64_t group_count() const {
    if (f_.heads == Heads::Own) return f_.head_count;
    return f_.heads == Heads::One ? 1 : f_.head_count / 2;
  }
  // [.., T, n * D] as [.., n, T, D]
  V to_heads(V x, int64_t count) {
    return net_.transpose(net_.reshape(x, with_prefix({f_.length, count, size_})), exchange_heads());
  }
  V project(V x, int64_t count) {
    if (f_.layout != Layout::Rows || count != f_.head_count)
      return to_heads(net_.linear(x, count * size_), count);
    const V rows = net_.reshape(x, {f_.length * count, size_});
    return to_heads(net_.matmul(rows, net_.weight({size_, size_})), count);
  }

  V attention(V x) {
    V queries;
    KeysAndValues own;
    if (f_.layout == Layout::OneProduct) {
      const int64_t keys = group_count() * size_;
      const V all = net_.linear(x, f_.width + 2 * keys);
      queries = to_heads(net_.slice(all, -1, 0, f_.width), f_.head_count);
      own.keys = to_heads(net_.slice(all, -1, f_.width, keys), group_count());
      own.values = to_heads(net_.slice(all, -1, f_.width + keys, keys), group_count());
    } else {
      queries = project(x, f_.head_count);
      if (!shared_.keys.valid()) own = {project(x, group_count()), project(x, group_count())};
    }
    queries = rotate(queries);
    if (!shared_.keys.valid()) own = {repeat(rotate(own.keys)), repeat(own.values)};
    if (f_.shares_keys) {
      if (!shared_.keys.valid()) shared_ = own;
      own = shared_;
    }
    V found = add_bias(scores(queries, own.keys));
    if (f_.hands_scores && handed_.valid()) found = net_.add(found, handed_);
    handed_ = found;
    const V weights = weigh(mask(found));
    const V mixed =
        is_turned() ? net_.matmul(weights, own.values, true, false) : net_.matmul(weights, own.values);
    return net_.linear(net_.reshape(net_.transpose(mixed, exchange_heads()), net_.shape(x)), f_.width);
  }

  V repeat(V x) {
    const int64_t groups = group_count(), each = f_.head_count / groups;
    if (f_.heads == Heads::Expanded) {
      const V apart = net_.reshape(x, with_prefix({groups, 1, f_.length, size_}));
      const V expanded = net_.expand(apart, with_prefix({groups, each, f_.length, size_}));
      return net_.reshape(expanded, with_prefix({f_.head_count, f_.length, size_}));
    }
    if (f_.heads != Heads::Concatenated) return x;
    std::vector<V> parts;
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t i = 0; i < each; ++i) parts.push_back(net_.slice(x, -3, group, 1));
    return net_.concat(parts, -3);
  }

  V scores(V queries, V keys) {
    const V scale = net_.number(1 / std::sqrt(static_cast<double>(size_)));
    if (f_.layout == Layout::Explicit) {
      const V half = net_.number(std::pow(static_cast<double>(size_), -0.25));
      return net_.matmul(net_.mul(queries, half), net_.mul(net_.swap_last(keys), half));
    }
    if (is_turned()) return net_.mul(net_.matmul(keys, queries, false, true), scale);
    return net_.div(net_.matmul(queries, keys, false, true),
                    net_.number(std::sqrt(static_cast<double>(size_))));
  }

  V distances() {
    return net_.table(DType::F32, is_turned(), [](int64_t row, int64_t key) { return double(key - row); });
  }
  V add_bias(V scores) {
    if (f_.positions == Positions::Alibi) {
      const V slopes =
          net_.constant({f_.head_count, 1, 1}, [](int64_t h) { return std::pow(0.5, double(h)); });
      return net_.add(scores, net_.mul(distances(), slopes));
    }
    if (f_.positions != Positions::Relative) return scores;
    const V buckets = net_.table(DType::I64, is_turned(), [](int64_t row, int64_t key) {
      return double(std::min<int64_t>(std::max<int64_t>(row - key, 0), 7));
    });
    const V bias = net_.gather(net_.weight({8, f_.head_count}), buckets);
    return net_.add(scores, net_.transpose(bias, {2, 0, 1}));
  }

  bool is_seen(int64_t row, int64_t key) const {
    if (f_.leaks && row == 0 && key == f_.length - 1) return true;
    return key <= row && (f_.window == 0 || row - key < f_.window);
  }
  V table(DType dtype, double seen, double hidden) {
    return net_.table(dtype, is_turned(),
                      [&](int64_t row, int64_t key) { return is_seen(row, key) ? seen : hidden; });
  }
  V mask(V scores) {
    switch (f_.mask) {
      case Mask::AddBillion:
        return net_.add(scores, table(DType::F32, 0, -1e9));
      case Mask::OldGpt2: {
        const V b = table(DType::F32, 1, 0);
        const V hidden = net_.mul(net_.number(1e4), net_.sub(net_.number(1), b));
        return net_.sub(net_.mul(scores, b), hidden);
      }
      case Mask::Comparison:
        return net_.where(compared(), scores, net_.number(kNever));
      case Mask::SliceOfLarger:
        return net_.where(corner(), scores, net_.number(-1e9));
      case Mask::CastOfBools: {
        const V open = net_.cast(table(DType::Bool, 1, 0), DType::F32);
        return net_.add(scores, net_.mul(net_.sub(net_.number(1), open),
                                         net_.number(-std::numeric_limits<float>::max())));
      }
      default:
        return net_.where(table(DType::Bool, 1, 0), scores, net_.number(kNever));
    }
  }
  V range(bool down) {
    std::vector<int64_t> places(static_cast<size_t>(f_.length));
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int64_t>(i);
    return net_.constant(dag::make_tensor(down ? Shape{f_.length, 1} : Shape{1, f_.length}, places));
  }
  V compared() {
    const V rows = range(!is_turned()), keys = range(is_turned());
    const V causal = net_.op(OpKind::LessEqual, {keys, rows});
    if (f_.window == 0) return causal;
    const V width = net_.constant(dag::make_scalar(DType::I64, static_cast<double>(f_.window)));
    return net_.op(OpKind::And, {causal, net_.op(OpKind::Less, {net_.sub(rows, keys), width})});
  }
  V corner() {
    const int64_t whole = f_.length + 32;
    std::vector<double> values;
    for (int64_t i = 0; i < whole; ++i)
      for (int64_t j = 0; j < whole; ++j) values.push_back(is_turned() ? is_seen(j, i) : is_seen(i, j));
    const V larger = net_.buffer(dag::from_doubles({DType::Bool, {1, whole, whole}}, values));
    return net_.slice(net_.slice(larger, 1, 0, f_.length), 2, 0, f_.length);
  }

  V weigh(V masked) {
    const int64_t axis = is_turned() ? -2 : -1;
    switch (f_.weighting) {
      case Weighting::WrittenOut: {
        const V most = net_.reduce(OpKind::ReduceMax, masked, axis);
        const V raised = net_.op(OpKind::Exp, {net_.sub(masked, most)});
        return net_.div(raised, net_.reduce(OpKind::ReduceSum, raised, axis));
      }
      case Weighting::WithoutNan: {
        const V weights = net_.softmax(masked, axis);
        return net_.where(net_.op(OpKind::IsNaN, {weights}), net_.number(0), weights);
      }
      case Weighting::Sigmoid:
        return net_.op(OpKind::Sigmoid, {masked});
      default:
        return net_.softmax(masked, axis);
    }
  }

  // ---- rotary positions ----

  static double angle(int64_t position, int64_t frequency) {
    return static_cast<double>(position) * std::pow(10.0, -0.25 * static_cast<double>(frequency));
  }
  // [T, D], both halves alike.
  V angles(double (*f)(double)) {
    const int64_t half = size_ / 2;
    return net_.constant({f_.length, size_},
                         [&](int64_t i) { return f(angle(i / size_, i % size_ % half)); });
  }
  V computed(OpKind kind) {
    const V positions = net_.constant({f_.length, 1}, [](int64_t i) { return double(i); });
    std::vector<float> frequencies;
    for (int64_t k = 0; k < size_ / 2; ++k) frequencies.push_back(static_cast<float>(angle(1, k)));
    const V product = net_.matmul(positions, net_.buffer(dag::make_tensor({1, size_ / 2}, frequencies)));
    return net_.op(kind, {net_.concat({product, product}, -1)});
  }
  V looked_up(double (*f)(double)) {
    const int64_t half = size_ / 2, rows = f_.length + 8;
    const V table =
        net_.constant({rows, size_}, [&](int64_t i) { return f(angle(i / size_, i % size_ % half)); });
    const V places = net_.reshape(range(false), {1, f_.length});
    return net_.reshape(net_.gather(table, places), {1, 1, f_.length, size_});
  }
  V rotate(V x) {
    switch (f_.positions) {
      case Positions::Halves:
        return by_halves(x, angles(std::cos), angles(std::sin));
      case Positions::Gathered: {
        const V cosines = looked_up(std::cos), sines = looked_up(std::sin);
        if (has_prefix()) return by_halves(x, cosines, sines);
        return by_halves(x, net_.reshape(cosines, {f_.length, size_}),
                         net_.reshape(sines, {f_.length, size_}));
      }
      case Positions::Computed:
        return by_halves(x, computed(OpKind::Cos), computed(OpKind::Sin));
      case Positions::Interleaved:
        return by_neighbours(x);
      default:
        return x;
    }
  }
  V by_halves(V x, V cosines, V sines) {
    const int64_t half = size_ / 2;
    const V low = net_.slice(x, -1, 0, half), high = net_.slice(x, -1, half, half);
    const V turned = net_.concat({net_.op(OpKind::Neg, {high}), low}, -1);
    return net_.add(net_.mul(x, cosines), net_.mul(turned, sines));
  }
  V by_neighbours(V x) {
    const int64_t half = size_ / 2;
    Shape pairs = net_.shape(x);
    pairs.back() = half;
    pairs.push_back(2);
    const V apart = net_.reshape(x, pairs);
    const V even = net_.slice(apart, -1, 0, 1), odd = net_.slice(apart, -1, 1, 1);
    const auto table = [&](double (*f)(double)) {
      return net_.constant({f_.length, half, 1}, [&](int64_t i) { return f(angle(i / half, i % half)); });
    };
    const V cosines = table(std::cos), sines = table(std::sin);
    const V first = net_.sub(net_.mul(even, cosines), net_.mul(odd, sines));
    const V second = net_.add(net_.mul(even, sines), net_.mul(odd, cosines));
    return net_.reshape(net_.concat({first, second}, -1), net_.shape(x));
  }

  const Form& f_;
  Net net_;
  int64_t size_;
  KeysAndValues shared_;
  V handed_;
};

}  // namespace

Model make_model(const Form& form) { return Writer(form).run(); }

Form random_form(uint64_t seed) {
  Rng rng(seed, 7);
  const auto any = [&](auto count) {
    return static_cast<decltype(count)>(rng.below(static_cast<uint64_t>(count)));
  };
  Form form{.name = "seed " + std::to_string(seed)};
  form.mask = any(Mask::Count);
  form.positions = any(Positions::Count);
  form.heads = any(Heads::Count);
  form.weighting = any(Weighting::Count);
  form.layout = static_cast<Layout>(rng.below(kLayouts));
  form.norm = any(Norm::Count);
  form.mlp = any(Mlp::Count);
  form.head_count = int64_t{2} << rng.below(2);
  form.width = form.head_count * (int64_t{2} << rng.below(3));
  // Lengths that are sizes of other dims, too.
  form.length = rng.below(3) == 0 ? form.width : static_cast<int64_t>(12 + rng.below(60));
  form.layers = 1 + static_cast<int64_t>(rng.below(3));
  form.window = rng.below(4) == 0 ? 1 + static_cast<int64_t>(rng.below(9)) : 0;
  form.batch = rng.below(3) != 0;
  form.tied = rng.below(2) == 0;
  form.parallel = rng.below(3) == 0;
  form.shares_keys = rng.below(4) == 0;
  form.hands_scores = rng.below(6) == 0;
  form.leaks = rng.below(8) == 0 && form.mask != Mask::Comparison;
  form.seed = seed;
  return form;
}

std::string to_string(const Form& form) {
  std::string text = form.name;
  const auto put = [&](const char* what, auto value) {
    text += std::string(", ") + what + " " + std::to_string(static_cast<int64_t>(value));
  };
  put("mask", form.mask), put("positions", form.positions), put("heads", form.heads);
  put("weighting", form.weighting), put("layout", form.layout), put("norm", form.norm), put("mlp", form.mlp);
  put("length", form.length), put("width", form.width), put("head_count", form.head_count);
  put("layers", form.layers), put("window", form.window), put("batch", form.batch), put("tied", form.tied);
  put("parallel", form.parallel), put("shares_keys", form.shares_keys),
      put("hands_scores", form.hands_scores), put("leaks", form.leaks);
  return text;
}

}  // namespace weft::incremental::testing
