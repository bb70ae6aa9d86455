#include "peer/backend/cpu/onednn.h"

namespace weft::peer::cpu {

using dag::Attr;
using dag::Layout;
using dnnl::memory;

ConvGeometry::ConvGeometry(const dag::Attributes& attributes)
    : strides(attributes.get_ints(Attr::Strides)), groups(attributes.get_int(Attr::Groups, 1)) {
  const dag::Ints &pads = attributes.get_ints(Attr::Pads), &steps = attributes.get_ints(Attr::Dilations);
  const size_t dims = strides.size();
  for (size_t d = 0; d < dims; ++d) {
    dilations.push_back((steps.empty() ? 1 : steps[d]) - 1);  // oneDNN counts the gaps
    pads_begin.push_back(pads[d]);
    pads_end.push_back(pads[dims + d]);
  }
}

memory::dims ConvGeometry::weight_dims(const dag::Shape& w) const {
  if (groups == 1) return w;
  memory::dims dims{groups, w[0] / groups};
  dims.insert(dims.end(), w.begin() + 1, w.end());
  return dims;
}

namespace {

memory::format_tag plain_tag(size_t rank) {
  using Tag = memory::format_tag;
  constexpr Tag kTags[] = {Tag::undef, Tag::a, Tag::ab, Tag::abc, Tag::abcd, Tag::abcde, Tag::abcdef};
  return rank < std::size(kTags) ? kTags[rank] : Tag::undef;
}

memory::format_tag tag_of(Layout layout, size_t rank) {
  using Tag = memory::format_tag;
  switch (layout) {
    case Layout::Plain:
      return plain_tag(rank);
    case Layout::Blocked8:
      return rank == 3 ? Tag::aBc8b : (rank == 4 ? Tag::aBcd8b : Tag::aBcde8b);
    case Layout::Blocked16:
      return rank == 3 ? Tag::aBc16b : (rank == 4 ? Tag::aBcd16b : Tag::aBcde16b);
  }
  return Tag::undef;
}

memory::dims dims_of(const dag::Value& value, int64_t samples) {
  memory::dims dims = value.spec.shape;
  if (samples > 0) dims[0] = samples;
  return dims;
}

}  // namespace

Md value_md(const dag::Value& value, int64_t samples) {
  return Md(dims_of(value, samples), memory::data_type::f32, tag_of(value.layout, value.spec.shape.size()));
}
Md plain_md(const memory::dims& dims) { return Md(dims, memory::data_type::f32, plain_tag(dims.size())); }
Md any_md(const memory::dims& dims) { return Md(dims, memory::data_type::f32, memory::format_tag::any); }
Md wanted_md(const dag::Value& value, int64_t samples) {
  const bool enough_channels = value.spec.shape[1] >= 8;
  if (value.layout == Layout::Plain && enough_channels) return any_md(dims_of(value, samples));
  return value_md(value, samples);
}

void Primitive::add(int argument, const Md& given, const Md& wanted, bool input) {
  Operand operand{argument, given, wanted, input, {}, 0};
  if (given != wanted) {
    const Md &from = input ? given : wanted, &to = input ? wanted : given;
    operand.copy = dnnl::reorder(dnnl::reorder::primitive_desc(engine_, from, engine_, to));
    operand.offset = bytes_;
    bytes_ += align_up(static_cast<int64_t>(wanted.get_size()));
  }
  operands_.push_back(std::move(operand));
}

void Primitive::set(dnnl::primitive primitive, const Md& scratchpad) {
  primitive_ = std::move(primitive);
  scratchpad_ = scratchpad;
  scratchpad_offset_ = bytes_;
  bytes_ += align_up(static_cast<int64_t>(scratchpad.get_size()));
}

void Primitive::run(std::span<void* const> data, std::byte* block) const {
  dnnl::stream stream(engine_);
  std::unordered_map<int, memory> arguments;
  const auto given = [&](size_t i) { return memory(operands_[i].given, engine_, data[i]); };
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if (!operand.copy) {
      arguments.emplace(operand.argument, given(i));
      continue;
    }
    memory wanted(operand.wanted, engine_, block + operand.offset);
    if (operand.input) operand.copy.execute(stream, {{DNNL_ARG_FROM, given(i)}, {DNNL_ARG_TO, wanted}});
    arguments.emplace(operand.argument, wanted);
  }
  arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(scratchpad_, engine_, block + scratchpad_offset_));
  primitive_.execute(stream, arguments);
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if (operand.copy && !operand.input)
      operand.copy.execute(stream,
                           {{DNNL_ARG_FROM, arguments.at(operand.argument)}, {DNNL_ARG_TO, given(i)}});
  }
  stream.wait();
}

#if DNNL_VERSION_MAJOR >= 3
dnnl::convolution_forward::primitive_desc forward_pd(const dnnl::engine& engine, const ConvGeometry& g,
                                                     const Md& src, const Md& weights, const Md* bias,
                                                     const Md& dst) {
  return {engine,
          dnnl::prop_kind::forward_training,
          dnnl::algorithm::convolution_direct,
          src,
          weights,
          bias ? *bias : Md(),
          dst,
          g.strides,
          g.dilations,
          g.pads_begin,
          g.pads_end,
          user_scratchpad()};
}
dnnl::convolution_backward_data::primitive_desc backward_data_pd(const dnnl::engine& engine,
                                                                 const ConvGeometry& g, const Md& diff_src,
                                                                 const Md& weights, const Md& diff_dst) {
  return {engine,           dnnl::algorithm::convolution_direct,
          diff_src,         weights,
          diff_dst,         g.strides,
          g.dilations,      g.pads_begin,
          g.pads_end,       forward_pd(engine, g, diff_src, weights, nullptr, diff_dst),
          user_scratchpad()};
}
dnnl::convolution_backward_weights::primitive_desc backward_weights_pd(const dnnl::engine& engine,
                                                                       const ConvGeometry& g, const Md& src,
                                                                       const Md& weights,
                                                                       const Md& diff_weights,
                                                                       const Md& diff_dst) {
  return {engine,
          dnnl::algorithm::convolution_direct,
          src,
          diff_weights,
          diff_dst,
          g.strides,
          g.dilations,
          g.pads_begin,
          g.pads_end,
          forward_pd(engine, g, src, weights, nullptr, diff_dst),
          user_scratchpad()};
}
#else
dnnl::convolution_forward::primitive_desc forward_pd(const dnnl::engine& engine, const ConvGeometry& g,
                                                     const Md& src, const Md& weights, const Md* bias,
                                                     const Md& dst) {
  using Desc = dnnl::convolution_forward::desc;
  const auto kind = dnnl::prop_kind::forward_training;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const Desc desc =
      bias ? Desc(kind, algorithm, src, weights, *bias, dst, g.strides, g.dilations, g.pads_begin, g.pads_end)
           : Desc(kind, algorithm, src, weights, dst, g.strides, g.dilations, g.pads_begin, g.pads_end);
  return {desc, user_scratchpad(), engine};
}
dnnl::convolution_backward_data::primitive_desc backward_data_pd(const dnnl::engine& engine,
                                                                 const ConvGeometry& g, const Md& diff_src,
                                                                 const Md& weights, const Md& diff_dst) {
  const dnnl::convolution_backward_data::desc desc(dnnl::algorithm::convolution_direct, diff_src, weights,
                                                   diff_dst, g.strides, g.dilations, g.pads_begin,
                                                   g.pads_end);
  return {desc, user_scratchpad(), engine, forward_pd(engine, g, diff_src, weights, nullptr, diff_dst)};
}
dnnl::convolution_backward_weights::primitive_desc backward_weights_pd(const dnnl::engine& engine,
                                                                       const ConvGeometry& g, const Md& src,
                                                                       const Md& weights,
                                                                       const Md& diff_weights,
                                                                       const Md& diff_dst) {
  const dnnl::convolution_backward_weights::desc desc(dnnl::algorithm::convolution_direct, src, diff_weights,
                                                      diff_dst, g.strides, g.dilations, g.pads_begin,
                                                      g.pads_end);
  return {desc, user_scratchpad(), engine, forward_pd(engine, g, src, weights, nullptr, diff_dst)};
}
#endif

dnnl::engine cpu_engine() { return dnnl::engine(dnnl::engine::kind::cpu, 0); }

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace weft::peer::cpu
