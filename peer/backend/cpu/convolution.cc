// Convolution and its cotangent with respect to the input, by oneDNN, in pieces of one thread that the shapes
// fix: oneDNN's own threading changes bits from three threads on. Weights are plain in memory and are copied
// into the primitive's layout at each run: they change with every step.
#include "peer/backend/cpu/onednn.h"
#include "peer/backend/cpu/own_convolution.h"

namespace weft::peer::cpu {
namespace {

using dag::OpKind;

// from * w -> to: x and y forward, dy and dx backward.
class Convolution {
 public:
  explicit Convolution(const KernelRequest& request)
      : forward_(request.op.kind == OpKind::Conv),
        has_bias_(request.has(2)),
        from_(request.in(0)),
        to_(request.out(0)),
        w_(request.in_shape(1)),
        geometry_(request.attributes()) {
    choose_pieces();
    const OneThread one(request.team);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const bool again = i > 0 && pieces_[i].samples == pieces_[i - 1].samples &&
                         pieces_[i].channels == pieces_[i - 1].channels;
      primitives_.push_back(again ? primitives_.back() : make_primitive(pieces_[i]));
      block_bytes_ = std::max(block_bytes_, primitives_.back()->bytes());
    }
    const Md plain = plain_md(geometry_.weight_dims(w_));
    if (!by_channel_ && native_ != plain) {
      to_native_ = dnnl::reorder(dnnl::reorder::primitive_desc(engine_, plain, engine_, native_));
      shared_bytes_ = align_up(static_cast<int64_t>(native_.get_size()));
    }
  }

  int64_t bytes() const { return shared_bytes_ + block_bytes_ * static_cast<int64_t>(pieces_.size()); }
  bool has_bias() const { return has_bias_; }
  std::string name() const {
    return "onednn conv " + implementation_ + " " + std::string(to_string(to_.layout));
  }

  Status run(const Team& team, const float* from, const float* weights, const float* bias, float* to,
             std::byte* workspace) const {
    if (to_native_) {
      WEFT_TRY_STATUS(guarded_run([&] {
        dnnl::stream stream(engine_);
        const Md plain = plain_md(geometry_.weight_dims(w_));
        to_native_.execute(stream,
                           {{DNNL_ARG_FROM, dnnl::memory(plain, engine_, const_cast<float*>(weights))},
                            {DNNL_ARG_TO, dnnl::memory(native_, engine_, workspace)}});
        stream.wait();
      }));
      weights = reinterpret_cast<const float*>(workspace);
    }
    const int64_t taps = product(w_, 2, w_.size()),
                  positions = product(to_.spec.shape, 2, to_.spec.shape.size());
    const int64_t sample = from_.spec.element_count() / from_.spec.shape[0];
    return guarded_pieces(team, static_cast<int64_t>(pieces_.size()), [&](size_t i) {
      const ConvPiece& piece = pieces_[i];
      const float* own_weights = weights + piece.first_channel * taps * (forward_ ? w_[1] : 1);
      std::vector<void*> data{const_cast<float*>(from + piece.first_sample * sample),
                              const_cast<float*>(own_weights)};
      if (has_bias_) data.push_back(const_cast<float*>(bias + piece.first_channel));
      data.push_back(to + (piece.first_sample * to_.spec.shape[1] + piece.first_channel) * positions);
      primitives_[i]->run(data, workspace + shared_bytes_ + static_cast<int64_t>(i) * block_bytes_);
    });
  }

 private:
  // By samples; where there are few, each sample by ranges of output channels, which lie together in either
  // layout.
  void choose_pieces() {
    const int64_t samples = to_.spec.shape[0], channels = to_.spec.shape[1];
    constexpr int64_t kChannels = 16;  // a range is a multiple of every block
    const int64_t ranges = std::min(channels / kChannels, (kConvPieces + samples - 1) / samples);
    by_channel_ = geometry_.groups == 1 && channels % kChannels == 0 && samples < kConvPieces && ranges > 1;
    if (!by_channel_) {
      const int64_t count = std::min(samples, kConvPieces);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = samples * i / count, end = samples * (i + 1) / count;
        pieces_.push_back({begin, end - begin, 0, channels});
      }
      return;
    }
    const int64_t step = (channels / kChannels + ranges - 1) / ranges * kChannels;
    for (int64_t n = 0; n < samples; ++n)
      for (int64_t c = 0; c < channels; c += step) pieces_.push_back({n, 1, c, std::min(step, channels - c)});
  }

  // The weights of a range of output channels: rows of w forward, columns of it backward.
  Md given_weights(dnnl::memory::dims dims) const {
    dnnl::memory::dims strides(dims.size(), 1);
    for (size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
    if (!forward_) strides[0] = product(w_, 1, w_.size());
    return Md(dims, dnnl::memory::data_type::f32, strides);
  }

  std::shared_ptr<Primitive> make_primitive(const ConvPiece& piece) {
    dag::Value part = to_;
    part.spec.shape[1] = piece.channels;
    dag::Shape part_w = w_;
    if (by_channel_) part_w[forward_ ? 0 : 1] = piece.channels;
    const auto dims = geometry_.weight_dims(part_w);
    const Md from = wanted_md(from_, piece.samples), to = wanted_md(part, piece.samples);
    // The first piece chooses the weights' layout for all.
    const Md weights = !by_channel_ && !primitives_.empty() ? native_ : any_md(dims);
    const Md given_from = value_md(from_, piece.samples), given_to = value_md(part, piece.samples);
    return forward_ ? make_forward(piece, {from, weights, to, given_from, given_weights(dims), given_to})
                    : make_backward({from, weights, to, given_from, given_weights(dims), given_to});
  }

  struct Layouts {
    Md from, weights, to, given_from, given_weights, given_to;
  };

  std::shared_ptr<Primitive> make_forward(const ConvPiece& piece, const Layouts& l) {
    const Md bias = plain_md({piece.channels});
    const auto pd = forward_pd(engine_, geometry_, l.from, l.weights, has_bias_ ? &bias : nullptr, l.to);
    native_ = pd.weights_desc();
    implementation_ = pd.impl_info_str();
    auto primitive = std::make_shared<Primitive>(engine_);
    primitive->add_input(DNNL_ARG_SRC, l.given_from, pd.src_desc());
    primitive->add_input(DNNL_ARG_WEIGHTS, by_channel_ ? l.given_weights : native_, native_);
    if (has_bias_) primitive->add_input(DNNL_ARG_BIAS, bias, pd.bias_desc());
    primitive->add_output(DNNL_ARG_DST, l.given_to, pd.dst_desc());
    primitive->set(dnnl::convolution_forward(pd), pd.scratchpad_desc());
    return primitive;
  }

  std::shared_ptr<Primitive> make_backward(const Layouts& l) {
    const auto pd = backward_data_pd(engine_, geometry_, l.to, l.weights, l.from);
    native_ = pd.weights_desc();
    implementation_ = pd.impl_info_str();
    auto primitive = std::make_shared<Primitive>(engine_);
    primitive->add_input(DNNL_ARG_DIFF_DST, l.given_from, pd.diff_dst_desc());
    primitive->add_input(DNNL_ARG_WEIGHTS, by_channel_ ? l.given_weights : native_, native_);
    primitive->add_output(DNNL_ARG_DIFF_SRC, l.given_to, pd.diff_src_desc());
    primitive->set(dnnl::convolution_backward_data(pd), pd.scratchpad_desc());
    return primitive;
  }

  bool forward_, has_bias_, by_channel_ = false;
  dag::Value from_, to_;
  dag::Shape w_;
  ConvGeometry geometry_;
  dnnl::engine engine_ = cpu_engine();
  std::vector<ConvPiece> pieces_;
  std::vector<std::shared_ptr<Primitive>> primitives_;  // by piece; equal pieces share one
  Md native_;                                           // the weights as primitives want them
  dnnl::primitive to_native_;                           // for all pieces at once, when they share the weights
  int64_t shared_bytes_ = 0, block_bytes_ = 0;
  std::string implementation_;
};

// oneDNN counts in 32 bits inside: what comes near that is not for it.
bool within_onednn(const KernelRequest& request) {
  constexpr int64_t kDimMax = int64_t{1} << 24, kElementsMax = int64_t{1} << 31;
  const auto small = [&](const dag::Value& value) {
    const dag::Shape& shape = value.spec.shape;
    return product(shape, 1, shape.size()) < kElementsMax &&
           std::all_of(shape.begin(), shape.end(), [](int64_t dim) { return dim < kDimMax; });
  };
  const bool weight = request.op.kind == OpKind::ConvGradWeight;
  const dag::Shape& w = weight ? request.out_shape() : request.in_shape(1);
  const dag::Ints& dilations = request.attributes().get_ints(dag::Attr::Dilations);
  for (size_t d = 0; d < dilations.size(); ++d)
    if (dilations[d] * w[d + 2] >= kDimMax) return false;
  return small(request.in(0)) && small(request.in(1)) && small(request.out());
}

KernelResult make_onednn(const KernelRequest& request) {
  return guarded(request, [&]() -> KernelResult {
    if (request.op.kind == OpKind::ConvGradWeight) return make_conv_grad_weight(request);
    const auto convolution = std::make_shared<const Convolution>(request);
    const int from = request.input_slot(0), weights = request.input_slot(1), bias = request.input_slot(2);
    const int to = request.output_slot(0);
    const auto run = [=, &team = request.team](const Call& call) -> Status {
      return convolution->run(team, call.in<float>(from), call.in<float>(weights), call.in<float>(bias),
                              call.out<float>(to), call.workspace);
    };
    return request.make(convolution->name(), run, convolution->bytes());
  });
}

// Whether oneDNN's kernel is worth taking. Its reference loops are some hundred times slower than anything,
// its matrix products for a channel each ten times slower than loops over planes, for four channels twice as
// slow as ours, and its steps over single taps in three dims five times slower than the product they come to
// (bench/convolutions.cc has the figures).
bool is_fast(const Kernel& kernel, const KernelRequest& request, const OwnGeometry& g) {
  const auto is = [&](const char* part) {
    return kernel.implementation().find(part) != std::string_view::npos;
  };
  if (is(" ref")) return false;
  if (g.is_depthwise() && !is("_dw")) return false;
  if (g.groups > 1 && std::max(g.channels, g.filters) <= 4 && is("gemm")) return false;
  const bool steps_in_3d = g.taps == 1 && !g.is_product() && request.in_shape(0).size() == 5;
  return !steps_in_3d || g.groups > 1;
}

}  // namespace

KernelResult make_convolution(const KernelRequest& request) {
  if (request.op.kind == OpKind::IntegerConv) return make_integer_conv(request);
  if (!request.is_f32(request.in(0))) return request.decline();
  const OwnGeometry geometry(request);
  if (!request.own_convolutions && geometry.is_one_window() && request.all_plain())
    return make_one_window(request, geometry);
  std::unique_ptr<Kernel> kernel;
  if (!request.own_convolutions && within_onednn(request)) {
    WEFT_TRY(kernel, make_onednn(request));
    if (kernel != nullptr && is_fast(*kernel, request, geometry)) return kernel;
  }
  WEFT_TRY(std::unique_ptr<Kernel> own, make_own_convolution(request));
  return own != nullptr ? std::move(own) : std::move(kernel);
}

}  // namespace weft::peer::cpu
