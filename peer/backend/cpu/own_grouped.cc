// The cotangent of x through groups of few channels, which oneDNN has no fast kernel for: over planes of
// eight channels of x and eight of y. Groups that fill no eight are filled up with zeros.
#include <cstring>

#include "peer/backend/cpu/own_convolution.h"

namespace weft::peer::cpu {
namespace {

constexpr int64_t kLanes = 8;

class GroupedGradInput {
 public:
  GroupedGradInput(const KernelRequest& request, const OwnGeometry& geometry)
      : g_(geometry),
        loops_(request.loops),
        dy_blocked_(!request.is_plain(request.in(0))),
        dx_blocked_(!request.is_plain(request.out())) {}

  int64_t scratch_elements() const { return g_.groups * blocks(g_.channels) * column_elements(); }

  void run(const Team& team, const float* dy, const float* w, float* dx, float* packed) const {
    team.ranges(g_.groups, 1, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) pack(w, group, packed);
    });
    const int64_t columns = blocks(g_.channels);
    team.pieces(g_.samples * g_.groups * columns, [&](int64_t i) {
      piece(dy, packed, dx, i / (g_.groups * columns), i / columns % g_.groups, i % columns);
    });
  }

 private:
  static int64_t blocks(int64_t channels) { return (channels + kLanes - 1) / kLanes; }
  static int64_t width(int64_t channels, int64_t block) {
    return std::min(kLanes, channels - block * kLanes);
  }
  // The weights of eight channels of x.
  int64_t column_elements() const { return blocks(g_.filters) * g_.taps * kLanes * kLanes; }

  // w[filters, channels, taps] of a group -> [channels / 8, filters / 8, taps, 8, 8].
  void pack(const float* w, int64_t group, float* packed) const {
    const int64_t columns = blocks(g_.channels);
    packed += group * columns * column_elements();
    std::memset(packed, 0, static_cast<size_t>(columns * column_elements()) * sizeof(float));
    for (int64_t m = 0; m < g_.filters; ++m)
      for (int64_t c = 0; c < g_.channels; ++c) {
        const float* taps = w + ((group * g_.filters + m) * g_.channels + c) * g_.taps;
        float* target = packed + c / kLanes * column_elements() +
                        (m / kLanes * g_.taps * kLanes + m % kLanes) * kLanes + c % kLanes;
        for (int64_t k = 0; k < g_.taps; ++k) target[k * kLanes * kLanes] = taps[k];
      }
  }

  void piece(const float* dy, const float* packed, float* dx, int64_t sample, int64_t group,
             int64_t column) const {
    float* scratch = thread_scratch((g_.in_plane + g_.out_plane) * kLanes);
    float* gathered = scratch + g_.in_plane * kLanes;
    float* target = dx + (sample * g_.x_channels() + group * g_.channels + column * kLanes) * g_.in_plane;
    float* plane = dx_blocked_ ? target : scratch;
    loops_.fill(plane, 0.0f, g_.in_plane * kLanes);
    const float* weights = packed + (group * blocks(g_.channels) + column) * column_elements();
    for (int64_t m = 0; m < blocks(g_.filters); ++m) {
      const float* source = dy + (sample * g_.y_channels() + group * g_.filters + m * kLanes) * g_.out_plane;
      loops_.grouped_grad_input_plane(dy_blocked_ ? source : gather(source, width(g_.filters, m), gathered),
                                      weights + m * g_.taps * kLanes * kLanes, plane, g_.window);
    }
    if (!dx_blocked_)
      loops_.transpose(plane, kLanes, target, g_.in_plane, g_.in_plane, width(g_.channels, column));
  }
  const float* gather(const float* channels, int64_t count, float* together) const {
    if (count < kLanes) std::memset(together, 0, static_cast<size_t>(g_.out_plane * kLanes) * sizeof(float));
    loops_.transpose(channels, g_.out_plane, together, kLanes, count, g_.out_plane);
    return together;
  }

  OwnGeometry g_;
  const LoopTable& loops_;
  bool dy_blocked_, dx_blocked_;
};

// Blocks of eight that no group shares with its neighbour. Wide groups are better off as matrix products.
bool suits(const KernelRequest& request, const OwnGeometry& g) {
  constexpr int64_t kLeast = 5, kMost = 128;
  if (g.groups == 1 || g.channels < kLeast || g.filters < kLeast || g.channels > kMost || g.filters > kMost)
    return false;
  bool good = true;
  for (const dag::Value* value : {&request.in(0), &request.out()})
    good = good && (request.is_plain(*value) || (value->layout == dag::Layout::Blocked8 &&
                                                 g.channels % kLanes == 0 && g.filters % kLanes == 0));
  return good && request.is_plain(request.in(1));
}

}  // namespace

KernelResult make_grouped_grad_input(const KernelRequest& request, const OwnGeometry& geometry) {
  if (!suits(request, geometry)) return request.decline();
  const auto grouped = std::make_shared<const GroupedGradInput>(request, geometry);
  const int dy = request.input_slot(0), w = request.input_slot(1), dx = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    grouped->run(team, call.in<float>(dy), call.in<float>(w), call.out<float>(dx), call.scratch<float>());
    return {};
  };
  return request.make(std::string("own conv grouped ") + request.loops.isa, run,
                      grouped->scratch_elements() * static_cast<int64_t>(sizeof(float)));
}

}  // namespace weft::peer::cpu
