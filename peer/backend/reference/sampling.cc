// Values at places that lie between elements.
#include <algorithm>

#include "peer/backend/reference/places.h"
#include "peer/backend/reference/windows.h"

namespace weft::peer::reference {
namespace {

// Calls visit(place in `in`, place in `out`, weight) for each index that lies inside an axis of `in_size`
// elements, `in` before the resampling and `out` after it, in order of o and t.
template <typename Visit>
void for_each_tap(const Call& c, const AxisView& in, Visit visit) {
  const int64_t out_size = c.shape(1)[0], taps = c.shape(1)[1];
  if (out_size * in.inner == 0) return;  // however many of nothing
  for (int64_t outer = 0; outer < in.outer; ++outer)
    for (int64_t o = 0; o < out_size; ++o)
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t index = c.wholes(1)[at(o * taps + t)];
        if (index < 0 || index >= in.size) continue;
        for (int64_t i = 0; i < in.inner; ++i)
          visit((outer * in.size + index) * in.inner + i, (outer * out_size + o) * in.inner + i,
                c.reals(2)[at(o * taps + t)]);
      }
}

void resample(const Call& c) {
  const AxisView x = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for_each_tap(c, x, [&](int64_t from, int64_t to, double weight) {
    c.out().reals[at(to)] += weight * c.reals(0)[at(from)];
  });
}

void resample_grad(const Call& c) {
  const AxisView x = axis_view(c.out().spec.shape, c.attributes.get_int(Attr::Axis));
  for_each_tap(c, x, [&](int64_t to, int64_t from, double weight) {
    c.out().reals[at(to)] += weight * c.reals(0)[at(from)];
  });
}

// The sum that sample `i` is over a plane.
double sampled(const Samples& samples, int64_t i, const double* plane) {
  double sum = 0;
  for (int64_t k = samples.starts[at(i)]; k < samples.starts[at(i) + 1]; ++k)
    sum += samples.weights[at(k)] * plane[samples.from[at(k)]];
  return sum;
}
void scatter(const Samples& samples, int64_t i, double dy, double* plane) {
  for (int64_t k = samples.starts[at(i)]; k < samples.starts[at(i) + 1]; ++k)
    plane[samples.from[at(k)]] += samples.weights[at(k)] * dy;
}
// By how much sample `i` grows as its place moves along dim d.
double slope(const Samples& samples, int64_t i, size_t d, const double* plane) {
  double sum = 0;
  for (int64_t k = samples.starts[at(i)]; k < samples.starts[at(i) + 1]; ++k)
    sum += samples.slopes[d][at(k)] * plane[samples.from[at(k)]];
  return sum;
}

// ---- GridSample ----

// The samples of image n, as many as a channel of the result has.
Samples samples_of_image(const Call& c, size_t x, int64_t n) {
  const GridRule rule = grid_rule(c.attributes, c.in(x).spec);
  const size_t numbers = c.reals(x + 1).size() / static_cast<size_t>(c.shape(x)[0]);
  Samples samples;
  add_grid_samples(rule, plane_dims(c.shape(x)), std::span(c.reals(x + 1)).subspan(at(n) * numbers, numbers),
                   samples);
  return samples;
}

void grid_sample(const Call& c) {
  const int64_t plane = plane_dims(c.shape(0)).count(), channels = c.shape(0)[1];
  if (c.out().reals.empty()) return;
  for (int64_t n = 0; n < c.shape(0)[0]; ++n) {
    const Samples samples = samples_of_image(c, 0, n);
    for (int64_t p = n * channels; p < (n + 1) * channels; ++p)
      for (int64_t i = 0; i < samples.count(); ++i)
        c.out().reals[at(p * samples.count() + i)] = sampled(samples, i, c.reals(0).data() + p * plane);
  }
}

void grid_sample_grad(const Call& c) {
  const int64_t plane = plane_dims(c.shape(1)).count(), channels = c.shape(1)[1];
  const size_t dims = c.shape(1).size() - 2;
  if (c.reals(0).empty()) return;
  for (int64_t n = 0; n < c.shape(1)[0]; ++n) {
    const Samples samples = samples_of_image(c, 1, n);
    for (int64_t p = n * channels; p < (n + 1) * channels; ++p)
      for (int64_t i = 0; i < samples.count(); ++i) {
        const double dy = c.reals(0)[at(p * samples.count() + i)];
        scatter(samples, i, dy, c.out(0).reals.data() + p * plane);
        for (size_t d = 0; d < dims; ++d)
          c.out(1).reals[at(n * samples.count() + i) * dims + d] +=
              dy * slope(samples, i, d, c.reals(1).data() + p * plane);
      }
  }
}

// ---- RoiAlign ----

// The largest weighted element that a bin reads; a sample that has none beside the map reads a zero too.
struct Largest {
  double value = 0;
  int64_t k = -1;  // in samples.from; -1: the zero
};
Largest largest(const RoiBin& bin, const double* plane) {
  const Samples& samples = bin.samples;
  bool zero = static_cast<double>(samples.count()) < bin.total || samples.count() == 0;
  for (int64_t i = 0; i < samples.count(); ++i)
    zero = zero || samples.starts[at(i) + 1] - samples.starts[at(i)] < 4;
  Largest most;
  bool any = zero;
  for (int64_t k = 0; k < static_cast<int64_t>(samples.from.size()); ++k) {
    const double value = samples.weights[at(k)] * plane[samples.from[at(k)]];
    if (any && !(value > most.value)) continue;
    most = {value, k};
    any = true;
  }
  return most;
}

// Calls visit(bin, n, result's place in channel 0) for each bin of each region whose image n there is.
template <typename Visit>
void for_each_bin(const Call& c, size_t x, const Shape& y, Visit visit) {
  const RoiRule rule = roi_rule(c.attributes);
  const PlaneDims plane = plane_dims(c.shape(x));
  RoiBin bin;
  if (c.shape(x)[1] == 0) return;
  for (int64_t r = 0; r < y[0]; ++r) {
    const int64_t n = c.wholes(x + 2)[at(r)];
    if (n < 0 || n >= c.shape(x)[0]) continue;
    for (int64_t h = 0; h < rule.height; ++h)
      for (int64_t w = 0; w < rule.width; ++w) {
        set_roi_bin(rule, plane, std::span(c.reals(x + 1)).subspan(at(r) * 4, 4), h, w, bin);
        visit(bin, n, (r * y[1] * rule.height + h) * rule.width + w);
      }
  }
}

void roi_align(const Call& c) {
  const bool takes_max = c.attributes.get_string(Attr::Mode) == "max";
  const Shape &x = c.shape(0), &y = c.out().spec.shape;
  const int64_t plane = x[2] * x[3];
  for_each_bin(c, 0, y, [&](const RoiBin& bin, int64_t n, int64_t to) {
    for (int64_t channel = 0; channel < x[1]; ++channel) {
      const double* map = c.reals(0).data() + (n * x[1] + channel) * plane;
      double& result = c.out().reals[at(to + channel * y[2] * y[3])];
      if (takes_max) {
        result = largest(bin, map).value;
        continue;
      }
      for (int64_t i = 0; i < bin.samples.count(); ++i) result += sampled(bin.samples, i, map);
      result /= std::max(bin.total, 1.0);
    }
  });
}

void roi_align_grad(const Call& c) {
  const bool takes_max = c.attributes.get_string(Attr::Mode) == "max";
  const Shape &x = c.shape(1), &y = c.shape(0);
  const int64_t plane = x[2] * x[3];
  for_each_bin(c, 1, y, [&](const RoiBin& bin, int64_t n, int64_t from) {
    for (int64_t channel = 0; channel < x[1]; ++channel) {
      const int64_t map = (n * x[1] + channel) * plane;
      const double dy = c.reals(0)[at(from + channel * y[2] * y[3])];
      double* dx = c.out().reals.data() + map;
      if (takes_max) {
        const int64_t k = largest(bin, c.reals(1).data() + map).k;
        if (k >= 0) dx[bin.samples.from[at(k)]] += bin.samples.weights[at(k)] * dy;
        continue;
      }
      for (int64_t i = 0; i < bin.samples.count(); ++i)
        scatter(bin.samples, i, dy / std::max(bin.total, 1.0), dx);
    }
  });
}

// ---- DeformColumns ----

// What a column of taps needs to know.
struct Deformed {
  Shape x;
  int64_t groups, taps, out_width, windows, plane;
  WindowDim rows, columns;
};
Deformed deformed(const Call& c, size_t x) {
  const Ints &kernel = c.attributes.get_ints(Attr::Kernel), &offset = c.shape(x + 1);
  const Shape& image = c.shape(x);
  const auto dims = windows_of(c.attributes, image, {offset[0], 1, offset[2], offset[3]}, kernel).dims;
  return {.x = image,
          .groups = c.attributes.get_int(Attr::OffsetGroups),
          .taps = kernel[0] * kernel[1],
          .out_width = offset[3],
          .windows = offset[2] * offset[3],
          .plane = image[2] * image[3],
          .rows = dims[1],
          .columns = dims[2]};
}

// Calls visit(sample, n, group, places of its offsets' y and of its mask, tap, window) for every tap of every
// window; offset x stands `windows` places after y.
template <typename Visit>
void for_each_deformed_tap(const Call& c, size_t x, const Deformed& d, Visit visit) {
  const PlaneDims plane = plane_dims(d.x);
  if (d.x[1] == 0) return;
  Samples sample;
  for (int64_t n = 0; n < d.x[0]; ++n)
    for (int64_t group = 0; group < d.groups; ++group)
      for (int64_t tap = 0; tap < d.taps; ++tap)
        for (int64_t o = 0; o < d.windows; ++o) {
          const int64_t mask = ((n * d.groups + group) * d.taps + tap) * d.windows + o;
          const int64_t offset = 2 * (mask - o) + o;
          const int64_t row = d.rows.place(o / d.out_width, tap / d.columns.kernel);
          const int64_t column = d.columns.place(o % d.out_width, tap % d.columns.kernel);
          sample.clear();
          add_linear_sample(plane, static_cast<double>(row) + c.reals(x + 1)[at(offset)],
                            static_cast<double>(column) + c.reals(x + 1)[at(offset + d.windows)], sample);
          visit(sample, n, group, offset, mask, tap, o);
        }
}

void deform_columns(const Call& c) {
  const Deformed d = deformed(c, 0);
  const int64_t each = d.x[1] / d.groups;
  for_each_deformed_tap(
      c, 0, d,
      [&](const Samples& sample, int64_t n, int64_t group, int64_t, int64_t mask, int64_t tap, int64_t o) {
        for (int64_t p = n * d.x[1] + group * each; p < n * d.x[1] + (group + 1) * each; ++p)
          c.out().reals[at((p * d.taps + tap) * d.windows + o)] =
              (c.has(2) ? c.reals(2)[at(mask)] : 1) * sampled(sample, 0, c.reals(0).data() + p * d.plane);
      });
}

void deform_columns_grad(const Call& c) {
  const Deformed d = deformed(c, 1);
  const int64_t each = d.x[1] / d.groups;
  for_each_deformed_tap(
      c, 1, d,
      [&](const Samples& sample, int64_t n, int64_t group, int64_t offset, int64_t mask, int64_t tap,
          int64_t o) {
        const double factor = c.has(3) ? c.reals(3)[at(mask)] : 1;
        for (int64_t p = n * d.x[1] + group * each; p < n * d.x[1] + (group + 1) * each; ++p) {
          const double dy = c.reals(0)[at((p * d.taps + tap) * d.windows + o)];
          const double* plane = c.reals(1).data() + p * d.plane;
          scatter(sample, 0, dy * factor, c.out(0).reals.data() + p * d.plane);
          c.out(1).reals[at(offset)] += dy * factor * slope(sample, 0, 0, plane);
          c.out(1).reals[at(offset + d.windows)] += dy * factor * slope(sample, 0, 1, plane);
          if (c.has(3)) c.out(2).reals[at(mask)] += dy * sampled(sample, 0, plane);
        }
      });
}

}  // namespace

void run_sampling(const Call& call) {
  switch (call.kind) {
    case OpKind::Resample:
      return resample(call);
    case OpKind::ResampleGrad:
      return resample_grad(call);
    case OpKind::GridSample:
      return grid_sample(call);
    case OpKind::GridSampleGrad:
      return grid_sample_grad(call);
    case OpKind::RoiAlign:
      return roi_align(call);
    case OpKind::RoiAlignGrad:
      return roi_align_grad(call);
    case OpKind::DeformColumns:
      return deform_columns(call);
    case OpKind::DeformColumnsGrad:
      return deform_columns_grad(call);
    default:
      WEFT_CHECK_MSG(false, "not a sampling op");
  }
}

}  // namespace weft::peer::reference
