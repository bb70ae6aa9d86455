// Batch and layer normalisation. Statistics are sums over pieces that the shape fixes ((sample, channel
// block) planes for batch normalisation, blocks of rows for layer normalisation's parameter gradients),
// combined in order.
#include <cmath>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

// x[N, C, S] or [N, C/b, S, b] as N * C/b planes of [positions, lanes].
struct Planes {
  int64_t samples, channels, positions;
  int lanes;

  explicit Planes(const dag::Value& x)
      : samples(x.spec.shape[0]),
        channels(x.spec.shape[1]),
        positions(product(x.spec.shape, 2, x.spec.shape.size())),
        lanes(lanes_of(x.layout)) {}
  int64_t blocks() const { return channels / lanes; }
  int64_t count() const { return samples * blocks(); }
  int64_t size() const { return positions * lanes; }
  int64_t grain() const { return rows_grain(size()); }
  int64_t first_channel(int64_t plane) const { return plane % blocks() * lanes; }
};

// Calls f(begin, end) on ranges of channels.
template <typename F>
void over_channels(const Team& team, const Planes& planes, const F& f) {
  team.ranges(planes.channels, rows_grain(planes.samples), f);
}

KernelResult make_batch_norm(const KernelRequest& request) {
  const Planes planes(request.in(0));
  if (request.out(0).layout != request.in(0).layout) return request.decline();
  const double epsilon = request.attributes().get_double(Attr::Epsilon);
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int y = request.output_slot(0), mean = request.output_slot(1), variance = request.output_slot(2);
  // Workspace: mean and m2 of each plane (double), factor of each channel.
  const int64_t table = planes.samples * planes.channels;
  const int64_t bytes = (2 * table + planes.channels) * static_cast<int64_t>(sizeof(double));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float* source = call.in<float>(x);
    double *means = call.scratch<double>(), *m2s = means + table;
    float* factors = reinterpret_cast<float*>(m2s + table);
    team.ranges(planes.count(), planes.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loops.moments_plane(source + i * planes.size(), planes.positions, planes.lanes,
                            means + i * planes.lanes, m2s + i * planes.lanes);
    });
    over_channels(team, planes, [&](int64_t begin, int64_t end) {
      const double size = static_cast<double>(planes.positions),
                   samples = static_cast<double>(planes.samples);
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0, m2 = 0;
        for (int64_t n = 0; n < planes.samples; ++n) sum += means[n * planes.channels + c];
        const double centre = sum / samples;
        for (int64_t n = 0; n < planes.samples; ++n) {
          const double off = means[n * planes.channels + c] - centre;
          m2 += m2s[n * planes.channels + c] + size * off * off;
        }
        const double spread = m2 / (size * samples);
        call.out<float>(mean)[c] = static_cast<float>(centre);
        call.out<float>(variance)[c] = static_cast<float>(spread);
        factors[c] =
            static_cast<float>(static_cast<double>(call.in<float>(scale)[c]) / std::sqrt(spread + epsilon));
      }
    });
    team.ranges(planes.count(), planes.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = planes.first_channel(i);
        loops.normalise_plane(source + i * planes.size(), call.out<float>(y) + i * planes.size(),
                              planes.positions, planes.lanes, call.out<float>(mean) + c, factors + c,
                              call.in<float>(bias) + c);
      }
    });
    return {};
  };
  return request.make("vector planes", run, bytes, {x});
}

KernelResult make_batch_norm_inference(const KernelRequest& request) {
  const Planes planes(request.in(0));
  if (request.out(0).layout != request.in(0).layout) return request.decline();
  const double epsilon = request.attributes().get_double(Attr::Epsilon);
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int mean = request.input_slot(3), variance = request.input_slot(4), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float* factors = call.scratch<float>();
    for (int64_t c = 0; c < planes.channels; ++c) {
      const double spread = static_cast<double>(call.in<float>(variance)[c]) + epsilon;
      factors[c] = static_cast<float>(static_cast<double>(call.in<float>(scale)[c]) / std::sqrt(spread));
    }
    team.ranges(planes.count(), planes.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = planes.first_channel(i);
        loops.normalise_plane(call.in<float>(x) + i * planes.size(), call.out<float>(y) + i * planes.size(),
                              planes.positions, planes.lanes, call.in<float>(mean) + c, factors + c,
                              call.in<float>(bias) + c);
      }
    });
    return {};
  };
  return request.make("vector planes", run, planes.channels * static_cast<int64_t>(sizeof(float)), {x});
}

KernelResult make_batch_norm_grad(const KernelRequest& request) {
  const Planes planes(request.in(1));
  if (request.in(0).layout != request.in(1).layout || request.out(0).layout != request.in(1).layout)
    return request.decline();
  const double epsilon = request.attributes().get_double(Attr::Epsilon);
  const int dy = request.input_slot(0), x = request.input_slot(1), scale = request.input_slot(2);
  const int mean = request.input_slot(3), variance = request.input_slot(4);
  const int dx = request.output_slot(0), dscale = request.output_slot(1), dbias = request.output_slot(2);
  const int64_t table = planes.samples * planes.channels;
  const int64_t bytes = 2 * (table + planes.channels) * static_cast<int64_t>(sizeof(double));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    double *sums = call.scratch<double>(), *products = sums + table;
    float* factors = reinterpret_cast<float*>(products + table);
    float *mean_dy = factors + planes.channels, *slopes = mean_dy + planes.channels;
    const float *upstream = call.in<float>(dy), *source = call.in<float>(x), *centre = call.in<float>(mean);
    team.ranges(planes.count(), planes.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loops.norm_grad_sums_plane(upstream + i * planes.size(), source + i * planes.size(), planes.positions,
                                   planes.lanes, centre + planes.first_channel(i), sums + i * planes.lanes,
                                   products + i * planes.lanes);
    });
    over_channels(team, planes, [&](int64_t begin, int64_t end) {
      const double size = static_cast<double>(planes.positions * planes.samples);
      for (int64_t c = begin; c < end; ++c) {
        double sum = 0, with_x = 0;
        for (int64_t n = 0; n < planes.samples; ++n) {
          sum += sums[n * planes.channels + c];
          with_x += products[n * planes.channels + c];
        }
        const double rstd = 1 / std::sqrt(static_cast<double>(call.in<float>(variance)[c]) + epsilon);
        call.out<float>(dbias)[c] = static_cast<float>(sum);
        call.out<float>(dscale)[c] = static_cast<float>(with_x * rstd);
        factors[c] = static_cast<float>(static_cast<double>(call.in<float>(scale)[c]) * rstd);
        mean_dy[c] = static_cast<float>(sum / size);
        slopes[c] = static_cast<float>(with_x * rstd * rstd / size);
      }
    });
    team.ranges(planes.count(), planes.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = planes.first_channel(i);
        loops.norm_grad_plane(upstream + i * planes.size(), source + i * planes.size(),
                              call.out<float>(dx) + i * planes.size(), planes.positions, planes.lanes,
                              centre + c, factors + c, mean_dy + c, slopes + c);
      }
    });
    return {};
  };
  return request.make("vector planes", run, bytes, {dy});
}

KernelResult make_layer_norm(const KernelRequest& request) {
  const Shape& shape = request.in_shape(0);
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t rows = product(shape, 0, axis), width = product(shape, axis, shape.size());
  const float epsilon = static_cast<float>(request.attributes().get_double(Attr::Epsilon));
  const int x = request.input_slot(0), scale = request.input_slot(1), bias = request.input_slot(2);
  const int y = request.output_slot(0), mean = request.output_slot(1), rstd = request.output_slot(2);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    team.ranges(rows, rows_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float moments[2];
        loops.layer_norm_row(call.in<float>(x) + r * width, call.in<float>(scale), call.in<float>(bias),
                             call.out<float>(y) + r * width, width, epsilon, moments);
        call.out<float>(mean)[r] = moments[0];
        call.out<float>(rstd)[r] = moments[1];
      }
    });
    return {};
  };
  return request.make("vector rows", run, 0, {x});
}

KernelResult make_layer_norm_grad(const KernelRequest& request) {
  const Shape& shape = request.in_shape(1);
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t rows = product(shape, 0, axis), width = product(shape, axis, shape.size());
  const int dy = request.input_slot(0), x = request.input_slot(1), scale = request.input_slot(2);
  const int mean = request.input_slot(3), rstd = request.input_slot(4);
  const int dx = request.output_slot(0), dscale = request.output_slot(1), dbias = request.output_slot(2);
  // The parameters' gradients are summed over at most 16 blocks of rows, and those in order.
  const int64_t block_rows = std::max<int64_t>(8, (rows + 15) / 16),
                blocks = (rows + block_rows - 1) / block_rows;
  const int64_t bytes = 2 * blocks * width * static_cast<int64_t>(sizeof(float));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float* partial_scale = call.scratch<float>();
    float* partial_bias = partial_scale + blocks * width;
    team.ranges(blocks, rows_grain(block_rows * width), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float *sum_scale = partial_scale + b * width, *sum_bias = partial_bias + b * width;
        loops.fill(sum_scale, 0.0f, width);
        loops.fill(sum_bias, 0.0f, width);
        for (int64_t r = b * block_rows; r < std::min(rows, (b + 1) * block_rows); ++r)
          loops.layer_norm_grad_row(call.in<float>(dy) + r * width, call.in<float>(x) + r * width,
                                    call.in<float>(scale), call.in<float>(mean)[r], call.in<float>(rstd)[r],
                                    call.out<float>(dx) + r * width, sum_scale, sum_bias, width);
      }
    });
    team.ranges(width, rows_grain(blocks), [&](int64_t begin, int64_t end) {
      const auto combine = [&](float* target, const float* partials) {
        loops.fill(target + begin, 0.0f, end - begin);
        for (int64_t b = 0; b < blocks; ++b)
          loops.reduce_into[kReduceSum](target + begin, partials + b * width + begin, end - begin);
      };
      combine(call.out<float>(dscale), partial_scale);
      combine(call.out<float>(dbias), partial_bias);
    });
    return {};
  };
  return request.make("vector rows", run, bytes, {dy});
}

}  // namespace

KernelResult make_normalisation(const KernelRequest& request) {
  if (!request.is_f32(request.in(0))) return request.decline();
  switch (request.op.kind) {
    case OpKind::BatchNorm:
      return make_batch_norm(request);
    case OpKind::BatchNormInference:
      return make_batch_norm_inference(request);
    case OpKind::BatchNormGrad:
      return make_batch_norm_grad(request);
    case OpKind::LayerNorm:
      return request.all_plain() ? make_layer_norm(request) : request.decline();
    case OpKind::LayerNormGrad:
      return request.all_plain() ? make_layer_norm_grad(request) : request.decline();
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
