// Convolutions of each channel by itself, over planes of 8 or 16 channels side by side. A plain value's
// channels are brought together plane by plane; the last plane of some may be filled up with zeros.
#include <cstring>

#include "peer/backend/cpu/own_convolution.h"

namespace weft::peer::cpu {
namespace {

using dag::OpKind;

class Depthwise {
 public:
  Depthwise(const KernelRequest& request, const OwnGeometry& geometry, int lanes)
      : kind_(request.op.kind), g_(geometry), lanes_(lanes), loops_(request.loops) {
    const auto blocked = [&](const dag::Value& value) { return !request.is_plain(value); };
    x_blocked_ = blocked(kind_ == OpKind::ConvGradInput ? request.out() : request.in(0));
    y_blocked_ = blocked(kind_ == OpKind::Conv            ? request.out()
                         : kind_ == OpKind::ConvGradInput ? request.in(0)
                                                          : request.in(1));
  }

  struct Arrays {
    const float *x, *w, *bias, *y;
    float* result;
  };
  void run(const Team& team, const Arrays& a) const {
    const int64_t planes = (g_.groups + lanes_ - 1) / lanes_;
    if (kind_ == OpKind::ConvGradWeight)
      return team.pieces(planes, [&](int64_t plane) { grad_weight(a, plane); });
    team.pieces(g_.samples * planes, [&](int64_t i) {
      if (kind_ == OpKind::Conv) {
        forward(a, i / planes, i % planes);
      } else {
        grad_input(a, i / planes, i % planes);
      }
    });
  }

 private:
  int64_t channels_of(int64_t plane) const { return std::min<int64_t>(lanes_, g_.groups - plane * lanes_); }
  // Where a plane of a value begins, in either layout.
  int64_t start(int64_t sample, int64_t plane, int64_t positions) const {
    return (sample * g_.groups + plane * lanes_) * positions;
  }

  // channels[c, count] -> together[count, lanes], zeros for channels that are not there.
  void bring_together(const float* channels, int64_t plane, int64_t count, float* together) const {
    if (channels_of(plane) < lanes_)
      std::memset(together, 0, static_cast<size_t>(count * lanes_) * sizeof(float));
    loops_.transpose(channels, count, together, lanes_, channels_of(plane), count);
  }
  void take_apart(const float* together, int64_t plane, int64_t count, float* channels) const {
    loops_.transpose(together, lanes_, channels, count, count, channels_of(plane));
  }
  // A plane of an operand with its channels side by side: itself, or a copy in `buffer`.
  const float* gathered(const float* value, bool blocked, int64_t sample, int64_t plane, int64_t positions,
                        float* buffer) const {
    value += start(sample, plane, positions);
    if (blocked) return value;
    bring_together(value, plane, positions, buffer);
    return buffer;
  }

  // Buffers of a thread: a plane of x, one of y, the weights, the bias.
  struct Buffers {
    float *x, *y, *w, *bias;
  };
  Buffers buffers() const {
    Buffers b{};
    const int64_t x = x_blocked_ ? 0 : g_.in_plane * lanes_, y = y_blocked_ ? 0 : g_.out_plane * lanes_;
    b.x = thread_scratch(x + y + (g_.taps + 1) * lanes_);
    b.y = b.x + x, b.w = b.y + y, b.bias = b.w + g_.taps * lanes_;
    return b;
  }

  void forward(const Arrays& a, int64_t sample, int64_t plane) const {
    const Buffers b = buffers();
    bring_together(a.w + plane * lanes_ * g_.taps, plane, g_.taps, b.w);
    if (a.bias != nullptr) bring_together(a.bias + plane * lanes_, plane, 1, b.bias);
    const float* x = gathered(a.x, x_blocked_, sample, plane, g_.in_plane, b.x);
    float* target = a.result + start(sample, plane, g_.out_plane);
    loops_.depthwise_plane(x, b.w, a.bias != nullptr ? b.bias : nullptr, y_blocked_ ? target : b.y, g_.window,
                           lanes_);
    if (!y_blocked_) take_apart(b.y, plane, g_.out_plane, target);
  }
  void grad_input(const Arrays& a, int64_t sample, int64_t plane) const {
    const Buffers b = buffers();
    bring_together(a.w + plane * lanes_ * g_.taps, plane, g_.taps, b.w);
    const float* dy = gathered(a.y, y_blocked_, sample, plane, g_.out_plane, b.y);
    float* target = a.result + start(sample, plane, g_.in_plane);
    loops_.depthwise_grad_input_plane(dy, b.w, x_blocked_ ? target : b.x, g_.window, lanes_);
    if (!x_blocked_) take_apart(b.x, plane, g_.in_plane, target);
  }
  // Samples in order.
  void grad_weight(const Arrays& a, int64_t plane) const {
    const Buffers b = buffers();
    std::memset(b.w, 0, static_cast<size_t>(g_.taps * lanes_) * sizeof(float));
    for (int64_t sample = 0; sample < g_.samples; ++sample) {
      const float* x = gathered(a.x, x_blocked_, sample, plane, g_.in_plane, b.x);
      const float* dy = gathered(a.y, y_blocked_, sample, plane, g_.out_plane, b.y);
      loops_.depthwise_grad_weight_plane(x, dy, b.w, g_.window, lanes_);
    }
    take_apart(b.w, plane, g_.taps, a.result + plane * lanes_ * g_.taps);
  }

  OpKind kind_;
  OwnGeometry g_;
  int lanes_;
  const LoopTable& loops_;
  bool x_blocked_ = false, y_blocked_ = false;
};

// The block that the values lie in, or what suits the processor when all are plain; 0: two different blocks.
int lanes_for(const KernelRequest& request) {
  int lanes = 1;
  for (const dag::Value* value : {&request.in(0), &request.in(1), &request.out()}) {
    const int own = lanes_of(value->layout);
    if (own > 1 && lanes > 1 && own != lanes) return 0;
    lanes = std::max(lanes, own);
  }
  return lanes > 1 ? lanes : request.loops.lanes;
}

}  // namespace

KernelResult make_depthwise(const KernelRequest& request, const OwnGeometry& geometry) {
  const int lanes = lanes_for(request);
  if (lanes == 0) return request.decline();
  const auto depthwise = std::make_shared<const Depthwise>(request, geometry, lanes);
  const int first = request.input_slot(0), second = request.input_slot(1), bias = request.input_slot(2),
            to = request.output_slot(0);
  const bool backward = request.op.kind == OpKind::ConvGradInput;
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    const float *one = call.in<float>(first), *two = call.in<float>(second);
    depthwise->run(team, {one, two, call.in<float>(bias), backward ? one : two, call.out<float>(to)});
    return {};
  };
  return request.make(std::string("own conv depthwise ") + request.loops.isa, run);
}

}  // namespace weft::peer::cpu
