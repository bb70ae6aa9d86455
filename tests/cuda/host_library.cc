#include "tests/cuda/host_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>

#include "dag/tensor.h"

namespace weft::test {

using namespace peer::cuda;
using peer::Arithmetic;

namespace {

// An operand as the unit that multiplies it takes it.
std::vector<float> operand(const std::byte* data, int64_t count, Arithmetic arithmetic) {
  std::vector<float> values(static_cast<size_t>(count));
  if (arithmetic == Arithmetic::BF16) {
    const auto* bits = reinterpret_cast<const uint16_t*>(data);
    for (size_t i = 0; i < values.size(); ++i) values[i] = dag::float_from_bf16(bits[i]);
    return values;
  }
  std::memcpy(values.data(), data, values.size() * sizeof(float));
  if (arithmetic == Arithmetic::TF32)
    for (float& v : values) {
      const auto bits = std::bit_cast<uint32_t>(v);
      if (std::isfinite(v)) v = std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
    }
  return values;
}

float finish(float sum, const float* bias, int64_t column, ProductSpec::Epilogue epilogue) {
  using Epilogue = ProductSpec::Epilogue;
  if (epilogue == Epilogue::None) return sum;
  const float x = sum + bias[column];
  if (epilogue == Epilogue::BiasRelu) return x > 0 || x != x ? x : 0.0f;
  if (epilogue == Epilogue::BiasGelu)
    return static_cast<float>(
        0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * static_cast<double>(x) * x * x))));
  return x;
}

int64_t extent(int64_t stride, int64_t batch, int64_t one) { return stride * (batch - 1) + one; }

void multiply(const ProductSpec& p, const std::byte* first, const std::byte* second, const std::byte* bias,
              std::byte* result) {
  const std::vector<float> a = operand(first, extent(p.stride_a, p.batch, p.m * p.k), p.arithmetic),
                           b = operand(second, extent(p.stride_b, p.batch, p.k * p.n), p.arithmetic);
  auto* c = reinterpret_cast<float*>(result);
  std::vector<float> row(static_cast<size_t>(p.n)), columns(static_cast<size_t>(p.k * p.n));
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    const float *x = a.data() + batch * p.stride_a, *y = b.data() + batch * p.stride_b;
    for (int64_t k = 0; k < p.k; ++k)
      for (int64_t n = 0; n < p.n; ++n)
        columns[static_cast<size_t>(k * p.n + n)] = p.transpose_b ? y[n * p.k + k] : y[k * p.n + n];
    for (int64_t m = 0; m < p.m; ++m) {
      std::fill(row.begin(), row.end(), 0.0f);
      for (int64_t k = 0; k < p.k; ++k) {
        const float left = p.transpose_a ? x[k * p.m + m] : x[m * p.k + k];
        const float* right = columns.data() + k * p.n;
        for (int64_t n = 0; n < p.n; ++n) row[static_cast<size_t>(n)] += left * right[n];
      }
      for (int64_t n = 0; n < p.n; ++n)
        c[batch * p.stride_c + m * p.n + n] =
            finish(row[static_cast<size_t>(n)], reinterpret_cast<const float*>(bias), n, p.epilogue);
    }
  }
}

int64_t count_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Three spatial dims for all: those that are missing have one place.
struct Walk {
  int64_t x[3] = {1, 1, 1}, w[3] = {1, 1, 1}, y[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, pad[3] = {},
          dilation[3] = {1, 1, 1};
  explicit Walk(const ConvolutionSpec& s) {
    const size_t dims = s.strides.size();
    for (size_t d = 0; d < dims; ++d) {
      const size_t at = 3 - dims + d;
      x[at] = s.x[2 + d], w[at] = s.w[2 + d], y[at] = s.y[2 + d];
      stride[at] = s.strides[d], pad[at] = s.pads_begin[d], dilation[at] = s.dilations[d];
    }
  }
  // Each pair of an output's place and a tap of the window that meets the input: visit(output, input, tap).
  template <typename Visit>
  void pairs(Visit visit) const {
    for (int64_t a = 0; a < y[0]; ++a)
      for (int64_t b = 0; b < y[1]; ++b)
        for (int64_t c = 0; c < y[2]; ++c)
          for (int64_t i = 0; i < w[0]; ++i)
            for (int64_t j = 0; j < w[1]; ++j)
              for (int64_t k = 0; k < w[2]; ++k) {
                const int64_t p = a * stride[0] - pad[0] + i * dilation[0],
                              q = b * stride[1] - pad[1] + j * dilation[1],
                              r = c * stride[2] - pad[2] + k * dilation[2];
                if (p < 0 || q < 0 || r < 0 || p >= x[0] || q >= x[1] || r >= x[2]) continue;
                visit((a * y[1] + b) * y[2] + c, (p * x[1] + q) * x[2] + r, (i * w[1] + j) * w[2] + k);
              }
  }
};

void convolve(const ConvolutionSpec& s, const std::byte* first, const std::byte* second,
              const std::byte* bias, std::byte* result) {
  using Direction = ConvolutionSpec::Direction;
  const bool forward = s.direction == Direction::Forward, weight = s.direction == Direction::GradWeight;
  const std::vector<float> one = operand(first, count_of(s.direction == Direction::GradInput ? s.y : s.x),
                                         s.arithmetic),
                           two = operand(second, count_of(weight ? s.y : s.w), s.arithmetic);
  const int64_t results = count_of(forward ? s.y : weight ? s.w : s.x);
  // A weight's gradient is a sum over all places of all samples: one after another in float32 would be far
  // from what a library, which adds in blocks, makes of it.
  std::vector<double> to(static_cast<size_t>(results), 0.0);
  const Walk walk(s);
  const int64_t n_count = s.x[0], channels = s.x[1], filters = s.w[0], per_group = s.w[1];
  const int64_t x_plane = count_of(s.x) / (n_count * channels), y_plane = count_of(s.y) / (n_count * filters),
                w_plane = count_of(s.w) / (filters * per_group);
  for (int64_t n = 0; n < n_count; ++n)
    for (int64_t m = 0; m < filters; ++m)
      for (int64_t c = 0; c < per_group; ++c) {
        const int64_t channel = m / (filters / s.groups) * per_group + c;
        const int64_t x0 = (n * channels + channel) * x_plane, y0 = (n * filters + m) * y_plane,
                      w0 = (m * per_group + c) * w_plane;
        walk.pairs([&](int64_t y, int64_t x, int64_t w) {
          const auto add = [&](int64_t into, int64_t i, int64_t j) {
            to[static_cast<size_t>(into)] += static_cast<double>(one[static_cast<size_t>(i)]) *
                                             static_cast<double>(two[static_cast<size_t>(j)]);
          };
          if (forward)
            add(y0 + y, x0 + x, w0 + w);
          else if (weight)
            add(w0 + w, x0 + x, y0 + y);
          else
            add(x0 + x, y0 + y, w0 + w);
        });
      }
  for (int64_t i = 0; i < results; ++i) {
    const auto sum = static_cast<float>(to[static_cast<size_t>(i)]);
    if (s.arithmetic == Arithmetic::BF16)
      reinterpret_cast<uint16_t*>(result)[i] = dag::bf16_from_float(sum);
    else if (forward && bias != nullptr)
      reinterpret_cast<float*>(result)[i] = sum + reinterpret_cast<const float*>(bias)[i / y_plane % filters];
    else
      reinterpret_cast<float*>(result)[i] = sum;
  }
}

}  // namespace

std::shared_ptr<LibraryOp> host_product(const ProductSpec& spec) {
  auto op = std::make_shared<HostLibraryOp>();
  op->name = "host product";
  op->work = [spec](const std::byte* a, const std::byte* b, const std::byte* bias, std::byte* c) {
    multiply(spec, a, b, bias, c);
  };
  return op;
}

Result<std::shared_ptr<LibraryOp>> host_convolution(const ConvolutionSpec& spec) {
  if (spec.pads_begin != spec.pads_end)
    return fail(ErrorCode::Unsupported, "host device: a convolution with uneven padding");
  auto op = std::make_shared<HostLibraryOp>();
  op->name = "host convolution";
  op->work = [spec](const std::byte* first, const std::byte* second, const std::byte* bias,
                    std::byte* result) { convolve(spec, first, second, bias, result); };
  return std::shared_ptr<LibraryOp>(std::move(op));
}

// ---- sources ----

namespace {

std::string library_path(const std::string& text) {
  const std::filesystem::path folder = std::filesystem::path(WEFT_TEST_TMP) / "host_kernels";
  std::filesystem::create_directories(folder);
  uint64_t digest[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};  // FNV-1a, twice: names, not secrets
  for (const char c : text)
    for (uint64_t& d : digest)
      d = (d ^ static_cast<unsigned char>(c)) * (&d == digest ? 0x100000001b3u : 0x10000000233u);
  char name[64];
  std::snprintf(name, sizeof name, "%016llx%016llx.so", static_cast<unsigned long long>(digest[0]),
                static_cast<unsigned long long>(digest[1]));
  return folder / name;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the sources include decides as well whether an old one will do.
std::string headers() {
  std::string all;
  const std::filesystem::path root = std::filesystem::path(WEFT_SOURCE_DIR) / "peer/backend/cuda";
  for (const char* file : {"kernels/device_code.h", "kernels/launch.h", "kernels/math.cuh",
                           "kernels/elements.cuh", "kernels/random.cuh", "shim/shim.h", "shim/fault.h"})
    all += read_file(root / file);
  return all;
}

Status build(const std::string& text, const std::string& path) {
  const std::string stem = path + "." + std::to_string(::getpid());
  std::ofstream(stem + ".cc") << text;
  const std::string command = std::string(WEFT_CXX_COMPILER) +
                              " -x c++ -std=c++20 -O1 -ffp-contract=off -fPIC -shared -w " WEFT_SHIM_FLAGS
                              " -I" +
                              WEFT_SOURCE_DIR + " " + stem + ".cc -o " + stem + ".so 2>" + stem + ".log";
  if (std::system(command.c_str()) != 0)
    return fail(ErrorCode::Internal, "host device: " + read_file(stem + ".log") + "\nin " + stem + ".cc");
  std::filesystem::rename(stem + ".so", path);
  for (const char* end : {".cc", ".log"}) std::filesystem::remove(stem + end);
  return {};
}

// What is loaded finds the shim in the program or module that this code is part of.
void show_own_symbols() {
  Dl_info info{};
  static const int here = 0;
  if (::dladdr(&here, &info) != 0 && info.dli_fname != nullptr)
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

}  // namespace

Result<std::vector<const Entry*>> compile_for_shim(std::span<const KernelSource> sources) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  static std::map<std::string, const Entry*> known;
  std::vector<KernelSource> unknown;
  for (const KernelSource& source : sources)
    if (!known.contains(source.name) && std::none_of(unknown.begin(), unknown.end(), [&](const auto& other) {
          return other.name == source.name;
        }))
      unknown.push_back(source);
  std::sort(unknown.begin(), unknown.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  if (!unknown.empty()) {
    std::string text = "#include \"peer/backend/cuda/kernels/device_code.h\"\n";
    for (const KernelSource& source : unknown) text += source.code + "\n";
    const std::string path = library_path(text + headers());
    if (!std::filesystem::exists(path)) WEFT_TRY_STATUS(build(text, path));
    show_own_symbols();
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return fail(ErrorCode::Internal, std::string("host device: ") + ::dlerror());
    for (const KernelSource& source : unknown) {
      void* symbol = ::dlsym(library, (source.name + "_entry").c_str());
      if (symbol == nullptr) return fail(ErrorCode::Internal, std::string("host device: ") + ::dlerror());
      known[source.name] = reinterpret_cast<const Entry* (*)()>(symbol)();
    }
  }
  std::vector<const Entry*> entries;
  for (const KernelSource& source : sources) entries.push_back(known.at(source.name));
  return entries;
}

}  // namespace weft::test
