// The convolution's cotangent with respect to its weights. oneDNN's own threading of it changes bits with the
// number of threads, so it is cut into pieces by shape, each a one-thread primitive: either by samples, whose
// partial results are added in order, or, where the weights are large beside the activations, by output
// channels.
#include <cstring>

#include "peer/backend/cpu/onednn.h"

namespace weft::peer::cpu {
namespace {

struct WeightGradient {
  dag::Value x, dy;
  dag::Shape w;
  ConvGeometry geometry;
  dnnl::engine engine = cpu_engine();
  std::vector<ConvPiece> pieces;
  bool by_channel = false;
  std::vector<std::shared_ptr<Primitive>> primitives;  // by piece; equal pieces share one
  Md native, plain;                                    // of the whole dw, when cut by samples
  dnnl::primitive to_plain;

  // Workspace of a piece: its primitive's block, its dy when cut by channels, its dw when cut by samples.
  int64_t block_bytes = 0, dy_bytes = 0, dw_bytes = 0;
  int64_t piece_bytes() const { return block_bytes + dy_bytes + dw_bytes; }

  explicit WeightGradient(const KernelRequest& request)
      : x(request.in(0)), dy(request.in(1)), w(request.out_shape()), geometry(request.attributes()) {
    choose_pieces();
    const OneThread one(request.team);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const bool again =
          i > 0 && pieces[i].samples == pieces[i - 1].samples && pieces[i].channels == pieces[i - 1].channels;
      primitives.push_back(again ? primitives.back() : make_primitive(pieces[i]));
      block_bytes = std::max(block_bytes, primitives.back()->bytes());
    }
    plain = plain_md(geometry.weight_dims(w));
    if (by_channel) {
      const int64_t channels = pieces[0].channels;
      dy_bytes = align_up(dy.spec.bytes().value / w[0] * channels);
    } else {
      dw_bytes = align_up(static_cast<int64_t>(native.get_size()));
      to_plain = dnnl::reorder(dnnl::reorder::primitive_desc(engine, native, engine, plain));
    }
  }

  void choose_pieces() {
    const int64_t samples = x.spec.shape[0], channels = w[0], lanes = lanes_of(dy.layout);
    const int64_t weights = product(w, 0, w.size());
    const int64_t sample_pieces = std::min(samples, kConvPieces);
    // By channels each piece reads all of x and a copy of its part of dy; by samples each makes a whole dw.
    const bool can = geometry.groups == 1 && lanes > 1 && channels % lanes == 0 && channels / lanes > 1;
    by_channel = can && (samples == 1 || weights * sample_pieces > 2 * dy.spec.element_count());
    if (!by_channel) {
      for (int64_t i = 0; i < sample_pieces; ++i) {
        const int64_t begin = samples * i / sample_pieces, end = samples * (i + 1) / sample_pieces;
        pieces.push_back({begin, end - begin, 0, channels});
      }
      return;
    }
    const int64_t blocks = channels / lanes, count = std::min(blocks, kConvPieces);
    const int64_t step = (blocks + count - 1) / count * lanes;
    for (int64_t c = 0; c < channels; c += step)
      pieces.push_back({0, samples, c, std::min(step, channels - c)});
  }

  std::shared_ptr<Primitive> make_primitive(const ConvPiece& piece) {
    dag::Value part = dy;
    part.spec.shape[1] = piece.channels;
    dag::Shape part_w = w;
    part_w[0] = piece.channels;
    const auto dims = geometry.weight_dims(part_w);
    const Md src = source_md(piece.samples), dst = wanted_md(part, piece.samples);
    // The first piece chooses dw's layout for all, so that partial results can be added.
    const Md wanted = !by_channel && !primitives.empty() ? native : any_md(dims);
    const auto pd = backward_weights_pd(engine, geometry, src, any_md(dims), wanted, dst);
    native = pd.diff_weights_desc();
    auto primitive = std::make_shared<Primitive>(engine);
    primitive->add_input(DNNL_ARG_SRC, value_md(x, piece.samples), pd.src_desc());
    primitive->add_input(DNNL_ARG_DIFF_DST, value_md(part, piece.samples), pd.diff_dst_desc());
    primitive->add_output(DNNL_ARG_DIFF_WEIGHTS, by_channel ? plain_md(dims) : native, native);
    primitive->set(dnnl::convolution_backward_weights(pd), pd.scratchpad_desc());
    implementation = pd.impl_info_str();
    return primitive;
  }

  // oneDNN has no fast kernel for one, two or four plain channels: filled up with zeros to a block it has (a
  // first layer on grey images ran at 0.1 GFLOP/s without). Three channels have a kernel of their own.
  Md source_md(int64_t samples) const {
    const int64_t lanes = lanes_of(dy.layout), channels = x.spec.shape[1];
    const bool pad = x.layout == dag::Layout::Plain && lanes > 1 && channels < lanes && channels != 3 &&
                     geometry.groups == 1;
    if (!pad) return wanted_md(x, samples);
    using tag = dnnl::memory::format_tag;
    dnnl::memory::dims dims(x.spec.shape.begin(), x.spec.shape.end());
    dims[0] = samples;
    return Md(dims, dnnl::memory::data_type::f32, lanes == 16 ? tag::nChw16c : tag::nChw8c);
  }

  // dy's channels of one piece, dense.
  void copy_channels(const ConvPiece& piece, const float* source, float* target) const {
    const int64_t positions = product(dy.spec.shape, 2, dy.spec.shape.size()), samples = dy.spec.shape[0];
    const size_t bytes = static_cast<size_t>(piece.channels * positions) * sizeof(float);
    for (int64_t n = 0; n < samples; ++n)
      std::memcpy(target + n * piece.channels * positions,
                  source + (n * w[0] + piece.first_channel) * positions, bytes);
  }

  void run_piece(size_t i, const float* source, const float* upstream, float* result,
                 std::byte* block) const {
    const ConvPiece& piece = pieces[i];
    const float* from = source + piece.first_sample * (x.spec.element_count() / x.spec.shape[0]);
    float* copied = reinterpret_cast<float*>(block + block_bytes);
    const float* cotangent = upstream + piece.first_sample * (dy.spec.element_count() / dy.spec.shape[0]);
    float* partial = reinterpret_cast<float*>(block + block_bytes + dy_bytes);
    if (by_channel) {
      copy_channels(piece, upstream, copied);
      cotangent = copied;
      partial = result + piece.first_channel * product(w, 1, w.size());
    }
    void* const data[] = {const_cast<float*>(from), const_cast<float*>(cotangent), partial};
    primitives[i]->run(data, block);
  }

  Status run(const Team& team, const LoopTable& loops, const float* source, const float* upstream,
             float* result, std::byte* workspace) const {
    const int64_t count = static_cast<int64_t>(pieces.size());
    WEFT_TRY_STATUS(guarded_pieces(team, count, [&](size_t i) {
      run_piece(i, source, upstream, result, workspace + static_cast<int64_t>(i) * piece_bytes());
    }));
    if (by_channel) return {};
    const auto partial = [&](int64_t i) {
      return reinterpret_cast<float*>(workspace + i * piece_bytes() + block_bytes + dy_bytes);
    };
    team.ranges(static_cast<int64_t>(native.get_size() / sizeof(float)), kGrain / 8,
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = 1; i < count; ++i)
                    loops.reduce_into[kReduceSum](partial(0) + begin, partial(i) + begin, end - begin);
                });
    return guarded_run([&] {
      dnnl::stream stream(engine);
      to_plain.execute(stream, {{DNNL_ARG_FROM, dnnl::memory(native, engine, partial(0))},
                                {DNNL_ARG_TO, dnnl::memory(plain, engine, result)}});
      stream.wait();
    });
  }

  std::string implementation;
};

}  // namespace

KernelResult make_conv_grad_weight(const KernelRequest& request) {
  const auto gradient = std::make_shared<const WeightGradient>(request);
  const int x = request.input_slot(0), dy = request.input_slot(1), dw = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    return gradient->run(team, loops, call.in<float>(x), call.in<float>(dy), call.out<float>(dw),
                         call.workspace);
  };
  const int64_t bytes = gradient->piece_bytes() * static_cast<int64_t>(gradient->pieces.size());
  return request.make(
      "onednn conv " + gradient->implementation + (gradient->by_channel ? " by channel" : " by sample"), run,
      bytes);
}

}  // namespace weft::peer::cpu
