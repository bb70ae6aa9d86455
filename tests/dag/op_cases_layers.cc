// Cases of the families that are layers: convolution, normalisation, softmax, pooling, random.
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

struct ConvCase {
  const char* name;
  Shape x, w, y;
  Ints strides, dilations, pads;
  int64_t groups;
};
// Output sizes are written out by hand: floor((in + pads - dilation (k-1) - 1) / stride) + 1.
std::vector<ConvCase> conv_cases() {
  return {
      {"3x3", {2, 3, 5, 4}, {4, 3, 3, 3}, {2, 4, 5, 4}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 1},
      {"1x1", {2, 3, 3, 3}, {2, 3, 1, 1}, {2, 2, 3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 1},
      {"strided", {1, 2, 6, 7}, {3, 2, 3, 3}, {1, 3, 3, 4}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 1},
      {"stride leaves a rest", {1, 1, 6}, {2, 1, 3}, {1, 2, 2}, {2}, {1}, {0, 0}, 1},
      {"dilated", {1, 2, 7, 6}, {2, 2, 3, 2}, {1, 2, 5, 5}, {1, 1}, {2, 3}, {1, 1, 1, 1}, 1},
      {"grouped", {2, 4, 4, 4}, {6, 2, 3, 3}, {2, 6, 4, 4}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 2},
      {"depthwise", {1, 3, 4, 5}, {3, 1, 2, 2}, {1, 3, 3, 4}, {1, 1}, {1, 1}, {0, 0, 0, 0}, 3},
      {"uneven pads", {1, 2, 4, 3}, {2, 2, 2, 3}, {1, 2, 5, 4}, {1, 1}, {1, 1}, {0, 2, 2, 1}, 1},
      {"1d", {2, 3, 8}, {4, 3, 3}, {2, 4, 4}, {2}, {1}, {1, 0}, 1},
      {"3d", {1, 2, 3, 4, 3}, {2, 2, 2, 2, 2}, {1, 2, 2, 3, 2}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, 1},
  };
}

// Statistics of x as the forward op gives them, in double.
struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(const std::vector<double>& values) {
  Moments m;
  for (const double value : values) m.mean += value / static_cast<double>(values.size());
  for (const double value : values)
    m.variance += (value - m.mean) * (value - m.mean) / static_cast<double>(values.size());
  return m;
}

constexpr double kEpsilon = 1e-5;

void add_batch_norm_cases(OpCaseMaker& make) {
  for (const Shape& s : {Shape{3, 2, 4}, Shape{4, 3}, Shape{2, 3, 2, 3}, Shape{2, 2, 2, 1, 2}}) {
    const int64_t c = s[1];
    const Tensor x = make.real(s), scale = make.real({c}, 0.5, 2), bias = make.real({c});
    const std::string name = "rank " + std::to_string(s.size());
    const Attributes attributes{{Attr::Epsilon, kEpsilon}};
    make.add(OpKind::BatchNorm, name, {x, scale, bias}, attributes);

    std::vector<double> means, variances;
    const auto values = to_doubles(x);
    const size_t channels = static_cast<size_t>(c), plane = values.size() / static_cast<size_t>(s[0] * c);
    for (size_t k = 0; k < channels; ++k) {
      std::vector<double> channel;
      for (size_t i = 0; i < values.size(); ++i)
        if (i / plane % channels == k) channel.push_back(values[i]);
      means.push_back(moments(channel).mean);
      variances.push_back(moments(channel).variance);
    }
    const Tensor mean = from_doubles({DType::F32, {c}}, means),
                 variance = from_doubles({DType::F32, {c}}, variances);
    make.add(OpKind::BatchNormGrad, name, {make.real(s), x, scale, mean, variance}, attributes).tolerance =
        1e-4;
    make.add(OpKind::BatchNormInference, name, {x, scale, bias, make.real({c}), make.real({c}, 0.5, 2)},
             attributes)
        .no_gradient = {3, 4};
  }
}

void add_layer_norm_cases(OpCaseMaker& make) {
  struct Variant {
    Shape x;
    int64_t axis;
    bool scale, bias;
  };
  const Variant variants[] = {{{3, 5}, 1, true, true},    {{2, 3, 4}, 2, true, true},
                              {{2, 3, 4}, 1, true, true}, {{2, 6}, 1, true, false},
                              {{2, 6}, 1, false, false},  {{2, 6}, 1, false, true},
                              {{7}, 0, true, true}};
  for (const auto& [s, axis, with_scale, with_bias] : variants) {
    const Shape normalised(s.begin() + axis, s.end());
    const Tensor x = make.real(s);
    std::optional<Tensor> scale, bias;
    if (with_scale) scale = make.real(normalised, 0.5, 2);
    if (with_bias) bias = make.real(normalised);
    const std::string name = to_string(s) + " axis " + std::to_string(axis) + (with_scale ? " scale" : "") +
                             (with_bias ? " bias" : "");
    make.add(OpKind::LayerNorm, name, {x, scale, bias}, {{Attr::Axis, axis}, {Attr::Epsilon, kEpsilon}})
        .tolerance = 1e-4;

    const auto values = to_doubles(x);
    const auto width = static_cast<size_t>(TensorSpec{DType::F32, normalised}.element_count());
    std::vector<double> means, rstds;
    for (size_t row = 0; row < values.size(); row += width) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row);
      const Moments m = moments({begin, begin + static_cast<std::ptrdiff_t>(width)});
      means.push_back(m.mean);
      rstds.push_back(1 / std::sqrt(m.variance + kEpsilon));
    }
    Shape statistic = s;
    std::fill(statistic.begin() + axis, statistic.end(), 1);
    make.add(OpKind::LayerNormGrad, name,
             {make.real(s), x, scale, from_doubles({DType::F32, statistic}, means),
              from_doubles({DType::F32, statistic}, rstds)},
             {{Attr::Axis, axis}})
        .tolerance = 1e-4;
  }
}

void add_cross_entropy_cases(OpCaseMaker& make) {
  struct Variant {
    const char* name;
    Shape logits;
    int64_t axis;
    const char* reduction;
    bool weight, ignore;
    DType labels;
  };
  const Variant variants[] = {{"mean", {4, 5}, 1, "mean", false, false, DType::I64},
                              {"sum", {4, 5}, 1, "sum", false, false, DType::I32},
                              {"none", {4, 5}, 1, "none", false, false, DType::I64},
                              {"mean ignore", {6, 3}, 1, "mean", false, true, DType::I64},
                              {"mean weight", {6, 3}, 1, "mean", true, false, DType::I64},
                              {"mean weight ignore", {6, 3}, 1, "mean", true, true, DType::I64},
                              {"none weight ignore", {6, 3}, 1, "none", true, true, DType::I32},
                              {"planes", {2, 4, 3, 2}, 1, "mean", true, true, DType::I64},
                              {"tokens", {2, 3, 5}, 2, "mean", false, true, DType::I64},
                              {"one sample", {5}, 0, "sum", false, false, DType::I64}};
  for (const auto& [name, s, axis, reduction, with_weight, with_ignore, dtype] : variants) {
    const auto a = static_cast<size_t>(axis);
    const int64_t classes = s[a];
    Shape label_shape = s;
    label_shape.erase(label_shape.begin() + axis);
    auto labels = to_int64s(make.whole(label_shape, 0, classes - 1));
    if (with_ignore) labels[labels.size() / 2] = -100;
    const Tensor label_tensor = from_int64s({dtype, label_shape}, labels), logits = make.real(s, -2, 2);
    Attributes attributes{{Attr::Axis, axis}, {Attr::Reduction, reduction}};
    if (with_ignore) attributes.set(Attr::IgnoreIndex, -100);
    Operands forward{logits, label_tensor};
    std::optional<Tensor> weight;
    if (with_weight) forward.push_back(weight = make.real({classes}, 0.5, 2));
    make.add(OpKind::CrossEntropy, name, forward, attributes).no_gradient = {2};

    const auto values = to_doubles(logits);
    std::vector<double> lse(labels.size(), 0);
    size_t inner = 1;
    for (size_t d = a + 1; d < s.size(); ++d) inner *= static_cast<size_t>(s[d]);
    for (size_t i = 0; i < values.size(); ++i)
      lse[i / (inner * static_cast<size_t>(classes)) * inner + i % inner] += std::exp(values[i]);
    for (double& value : lse) value = std::log(value);
    const Shape loss_shape = std::string_view(reduction) == "none" ? label_shape : Shape{};
    Operands backward{make.real(loss_shape), logits, label_tensor,
                      from_doubles({DType::F32, label_shape}, lse)};
    if (with_weight) backward.push_back(weight);
    make.add(OpKind::CrossEntropyGrad, name, backward, attributes);
  }
}

void add_integer_conv_cases(OpCaseMaker& make, const std::string& name, const Shape& x, const Shape& w,
                            const Attributes& attributes) {
  const auto bytes = [&](DType dtype, const Shape& dims) {
    return make.whole(dims, dtype == DType::U8 ? 0 : -128, dtype == DType::U8 ? 255 : 127, dtype);
  };
  for (const DType of_x : {DType::U8, DType::I8})
    for (const DType of_w : {DType::U8, DType::I8}) {
      const std::string both = name + " " + std::string(to_string(of_x)) + " " + std::string(to_string(of_w));
      make.add(OpKind::IntegerConv, both, {bytes(of_x, x), bytes(of_w, w)}, attributes);
      make.add(OpKind::IntegerConv, both + " zeros",
               {bytes(of_x, x), bytes(of_w, w), bytes(of_x, {}), bytes(of_w, {})}, attributes);
      make.add(OpKind::IntegerConv, both + " zero a filter",
               {bytes(of_x, x), bytes(of_w, w), std::nullopt, bytes(of_w, {w[0]})}, attributes);
    }
}

}  // namespace

void add_convolution_cases(OpCaseMaker& make) {
  for (const ConvCase& c : conv_cases()) {
    const Attributes attributes{{Attr::Strides, c.strides},
                                {Attr::Dilations, c.dilations},
                                {Attr::Pads, c.pads},
                                {Attr::Groups, c.groups}};
    const auto with_shape = [&](const Shape& s) {
      Attributes more = attributes;
      more.set(Attr::Shape, s);
      return more;
    };
    make.add(OpKind::Conv, c.name, {make.real(c.x), make.real(c.w)}, attributes);
    make.add(OpKind::Conv, std::string(c.name) + " bias",
             {make.real(c.x), make.real(c.w), make.real({c.w[0]})}, attributes);
    make.add(OpKind::ConvGradInput, c.name, {make.real(c.y), make.real(c.w)}, with_shape(c.x));
    make.add(OpKind::ConvGradWeight, c.name, {make.real(c.x), make.real(c.y)}, with_shape(c.w));
    add_integer_conv_cases(make, c.name, c.x, c.w, attributes);
  }
  add_integer_conv_cases(
      make, "wide", {1, 5, 9, 70}, {7, 5, 3, 3},
      {{Attr::Strides, Ints{1, 1}}, {Attr::Pads, Ints{1, 2, 1, 0}}, {Attr::Groups, int64_t{1}}});
  add_integer_conv_cases(
      make, "by pixel", {2, 6, 5, 15}, {26, 6, 1, 1},
      {{Attr::Strides, Ints{1, 1}}, {Attr::Pads, Ints{0, 0, 0, 0}}, {Attr::Groups, int64_t{1}}});
}

void add_normalisation_cases(OpCaseMaker& make) {
  add_batch_norm_cases(make);
  add_layer_norm_cases(make);
}

void add_softmax_cases(OpCaseMaker& make) {
  for (int64_t axis = 0; axis < 3; ++axis) {
    const Shape s{make.between(2, 4), make.between(2, 4), make.between(2, 4)};
    const std::string name = "axis " + std::to_string(axis);
    const Attributes attributes{{Attr::Axis, axis}};
    make.add(OpKind::Softmax, name, {make.real(s, -3, 3)}, attributes);
    make.add(OpKind::LogSoftmax, name, {make.real(s, -3, 3)}, attributes);
    make.add(OpKind::SoftmaxGrad, name, {make.real(s), make.real(s, 0, 1)}, attributes);
    make.add(OpKind::LogSoftmaxGrad, name, {make.real(s), make.real(s, -3, 0)}, attributes);
  }
  make.add(OpKind::Softmax, "masked", {make.floats({2, 3}, {1, -HUGE_VAL, 2, -HUGE_VAL, 0, -HUGE_VAL})},
           {{Attr::Axis, 1}})
      .smooth = false;
  make.add(OpKind::Softmax, "large", {make.floats({3}, {1000, 999, -1000})}, {{Attr::Axis, 0}});
  make.add(OpKind::LogSoftmax, "an infinite one", {make.floats({3}, {1, HUGE_VAL, 2})}, {{Attr::Axis, 0}})
      .smooth = false;
  make.add(OpKind::LogSoftmax, "large", {make.floats({3}, {1000, 999, -1000})}, {{Attr::Axis, 0}});
  add_cross_entropy_cases(make);
}

void add_pooling_cases(OpCaseMaker& make) {
  struct Variant {
    const char* name;
    Shape x, y;
    Ints kernel, strides, pads;
    int64_t ceil;
  };
  // "ceil drops": the last window would start in the end padding.
  const Variant variants[] = {
      {"2x2", {2, 3, 4, 6}, {2, 3, 2, 3}, {2, 2}, {2, 2}, {0, 0, 0, 0}, 0},
      {"3x3 padded", {1, 2, 5, 4}, {1, 2, 3, 2}, {3, 3}, {2, 2}, {1, 1, 1, 1}, 0},
      {"overlapping", {1, 1, 4, 4}, {1, 1, 3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}, 0},
      {"ceil", {1, 2, 5, 6}, {1, 2, 3, 3}, {2, 3}, {2, 2}, {0, 0, 0, 0}, 1},
      {"ceil drops", {1, 1, 4}, {1, 1, 2}, {2}, {3}, {1, 1}, 1},
      {"uneven pads", {1, 2, 4, 3}, {1, 2, 4, 4}, {2, 3}, {1, 1}, {0, 2, 1, 1}, 0},
      {"1d", {2, 2, 7}, {2, 2, 3}, {3}, {2}, {0, 0}, 0},
      {"3d", {1, 2, 3, 4, 3}, {1, 2, 2, 2, 2}, {2, 2, 2}, {1, 2, 1}, {0, 0, 0, 0, 0, 0}, 0},
      {"a block of channels and a part", {2, 11, 5, 4}, {2, 11, 3, 2}, {3, 3}, {2, 2}, {1, 1, 1, 1}, 0},
      {"3d with channels", {1, 9, 3, 4, 3}, {1, 9, 3, 4, 2}, {3, 3, 2}, {1, 1, 2}, {1, 1, 0, 1, 1, 1}, 0}};
  for (const auto& [name, x, y, kernel, strides, pads, ceil] : variants) {
    const Attributes attributes{
        {Attr::Kernel, kernel}, {Attr::Strides, strides}, {Attr::Pads, pads}, {Attr::CeilMode, ceil}};
    Attributes dilated = attributes;
    dilated.set(Attr::Dilations, Ints(kernel.size(), 1));
    make.add(OpKind::MaxPool, name, {make.apart(x)}, dilated);
    int64_t plane = 1;
    for (size_t d = 2; d < x.size(); ++d) plane *= x[d];
    make.add(OpKind::MaxPoolGrad, name, {make.real(y), make.whole(y, 0, plane - 1, DType::I32)},
             {{Attr::Shape, x}});
    for (const int64_t include : {0, 1}) {
      Attributes average = attributes;
      average.set(Attr::CountIncludePad, include);
      const std::string variant = std::string(name) + (include ? " with padding" : "");
      make.add(OpKind::AveragePool, variant, {make.real(x)}, average);
      average.set(Attr::Shape, x);
      make.add(OpKind::AveragePoolGrad, variant, {make.real(y)}, average);
    }
  }
  for (const int64_t include : {0, 1}) {
    Attributes gaps{{Attr::Kernel, Ints{2, 2}},    {Attr::Strides, Ints{1, 2}},
                    {Attr::Dilations, Ints{2, 3}}, {Attr::Pads, Ints{1, 2, 0, 2}},
                    {Attr::CeilMode, int64_t{1}},  {Attr::CountIncludePad, include}};
    const std::string variant = include ? "dilated with padding" : "dilated";
    make.add(OpKind::AveragePool, variant, {make.real({1, 2, 6, 5})}, gaps);
    gaps.set(Attr::Shape, Shape{1, 2, 6, 5});
    make.add(OpKind::AveragePoolGrad, variant, {make.real({1, 2, 5, 4})}, gaps);
  }
  make.add(OpKind::MaxPool, "dilated", {make.apart({1, 2, 6, 5})},
           {{Attr::Kernel, Ints{2, 2}},
            {Attr::Strides, Ints{1, 1}},
            {Attr::Dilations, Ints{2, 3}},
            {Attr::Pads, Ints{1, 0, 1, 0}},
            {Attr::CeilMode, 0}});
}

void add_random_cases(OpCaseMaker& make) {
  for (const double ratio : {0.0, 0.1, 0.5})
    make.add(OpKind::Dropout, "ratio " + std::to_string(ratio), {make.real({4, 3, 5})},
             {{Attr::Ratio, ratio}, {Attr::Key, 7}});
  for (const OpKind kind : {OpKind::RandomUniform, OpKind::RandomNormal})
    for (const Shape& shape : {Shape{4, 3, 5}, Shape{}, Shape{1}, Shape{3, 700}, Shape{0, 3}})
      make.add(kind, to_string(shape), {make.real({}), make.real({}, 1, 2)},
               {{Attr::Shape, shape}, {Attr::Key, 9}});
}

}  // namespace weft::dag
