// Every convolution of torchvision's models (bench/convolutions/list.txt) in all three directions under each
// instruction set of this processor, one thread: what computes it, how fast, and how that compares with our
// matrix product of the size that a group comes to. Fails, by name, where a reference loop was chosen or less
// than a fifth of the matrix product's rate is reached.
//
//   weft_bench_convolutions [--list FILE] [--quick] [--isa SSE41|AVX2|AVX512_CORE|...] [--all] [--only WORD]
//
// --quick: the least convolution of each kind. --all: prints every row, not only the slowest. Instruction
// sets are chosen by ONEDNN_MAX_CPU_ISA, so the program runs itself once for each.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "base/rng.h"
#include "bench/numbers.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/program.h"

namespace weft {
namespace {

using namespace dag;

constexpr double kLeastShare = 0.2;  // of the matrix product's rate

struct Options {
  std::string list = "bench/convolutions/list.txt", isa, only;
  bool quick = false, all = false, own = false;
};

struct Convolution {
  Shape x, w, y;
  Ints strides, pads, dilations;
  int64_t groups = 1;
  std::string model;

  int64_t channels() const { return w[1]; }
  int64_t filters() const { return w[0] / groups; }
  static int64_t count(const Shape& shape, size_t from) {
    int64_t product = 1;
    for (size_t d = from; d < shape.size(); ++d) product *= shape[d];
    return product;
  }
  double flops() const { return 2.0 * static_cast<double>(count(y, 0)) * static_cast<double>(count(w, 1)); }
  std::string text() const {
    return to_string(x) + " " + to_string(w) + " s" + to_string(strides) + " p" + to_string(pads) +
           (count(dilations, 0) > 1 ? " d" + to_string(dilations) : "") +
           (groups > 1 ? " g" + std::to_string(groups) : "");
  }
};

Ints numbers(const std::string& text) {
  Ints list;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) list.push_back(bench::number_of<int64_t>(part));
  return list;
}

std::vector<Convolution> read_list(const std::string& path) {
  std::vector<Convolution> list;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream stream(line);
    std::string x, w, strides, pads, dilations;
    Convolution c;
    if (!(stream >> x >> w >> strides >> pads >> dilations >> c.groups >> c.model)) continue;
    c.x = numbers(x), c.w = numbers(w), c.strides = numbers(strides), c.pads = numbers(pads),
    c.dilations = numbers(dilations);
    c.y = {c.x[0], c.w[0]};
    const size_t dims = c.strides.size();
    for (size_t d = 0; d < dims; ++d)
      c.y.push_back((c.x[d + 2] + c.pads[d] + c.pads[dims + d] - c.dilations[d] * (c.w[d + 2] - 1) - 1) /
                        c.strides[d] +
                    1);
    list.push_back(std::move(c));
  }
  return list;
}

// The least of each kind: dims, taps, stride, dilation, how its channels stand to groups and blocks.
std::vector<Convolution> least_of_each_kind(const std::vector<Convolution>& list) {
  const auto blocks = [](int64_t channels) {
    return channels <= 4 ? static_cast<int>(channels) : channels % 16 == 0 ? 16 : channels % 8 == 0 ? 8 : 0;
  };
  std::map<std::tuple<Shape, Ints, bool, int, int, int>, Convolution> kinds;
  for (const Convolution& c : list) {
    const Shape taps(c.w.begin() + 2, c.w.end());
    const bool alone = c.channels() == 1 && c.groups > 1;
    const int kind = alone ? 2 : c.groups > 1 ? 1 : 0;
    const auto key = std::tuple(taps, c.strides, Convolution::count(c.dilations, 0) > 1, kind,
                                blocks(alone ? c.groups : c.channels()), blocks(alone ? 0 : c.filters()));
    const auto [it, fresh] = kinds.emplace(key, c);
    if (!fresh && c.flops() < it->second.flops()) it->second = c;
  }
  std::vector<Convolution> result;
  result.reserve(kinds.size());
  for (auto& [key, c] : kinds) result.push_back(std::move(c));
  return result;
}

Graph one_op(OpKind kind, const std::vector<Shape>& operands, const Attributes& attributes) {
  GraphBuilder b(op_table());
  std::vector<ValueId> inputs;
  inputs.reserve(operands.size());
  for (const Shape& shape : operands)
    inputs.push_back(b.input("x" + std::to_string(inputs.size()), {DType::F32, shape}));
  b.output("y", b.add(kind, inputs, attributes), OutputRole::Prediction);
  return b.finish();
}

struct Measured {
  double rate = 0;  // GFLOP/s
  double seconds = 0;
  std::string implementation;
};

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The best of a few runs of the op of `kind` in the graph as it is lowered.
Measured measure(peer::Backend& backend, const Graph& graph, OpKind kind, double flops) {
  const peer::BackendTraits traits = backend.traits();
  const Graph lowered = lower(graph, op_table(), {.convolution_layout = traits.convolution_layout});
  for (const peer::GroupSignature& group : peer::group_signatures(lowered)) {
    if (lowered.op(group.ops[0]).kind != kind) continue;
    auto kernel = backend.make_kernel(lowered, group);
    if (!kernel) return {0, 0, kernel.error().message};
    std::vector<std::unique_ptr<peer::Memory>> memory;
    const auto take = [&](Bytes size) -> peer::View {
      memory.push_back(std::move(*backend.allocate(size)));
      return {memory.back().get(), 0};
    };
    std::vector<peer::View> in, out;
    Rng rng(1, 1);
    for (const ValueId v : group.inputs) {
      Tensor tensor(lowered.spec(v));
      for (float& x : tensor.mutable_as<float>()) x = static_cast<float>(rng.next_u32() >> 8) / 16777216.0f;
      in.push_back(take(tensor.spec().bytes()));
      (void)backend.upload(tensor, in.back(), lowered.value(v).layout);
    }
    for (const ValueId v : group.outputs) out.push_back(take(lowered.spec(v).bytes()));
    const peer::View workspace = take((*kernel)->workspace_bytes());
    double best = 1e9, total = 0;
    for (int i = 0; i < 20 && (i < 2 || total < 0.02); ++i) {
      const double start = thread_seconds();
      const Status status = (*kernel)->run(in, out, workspace, {.seed = 1, .step = 1});
      if (!status) return {0, 0, status.error().message};
      const double seconds = thread_seconds() - start;
      total += seconds, best = std::min(best, seconds);
    }
    best = std::max(best, 1e-9);  // the clock's own step
    return {flops / best / 1e9, best, std::string((*kernel)->implementation())};
  }
  return {0, 0, "no such op"};
}

struct Row {
  std::string name;
  Measured measured;
  double product_rate;
  double share() const { return measured.rate / product_rate; }
  bool is_reference() const {
    return measured.implementation == "reference" ||
           measured.implementation.find(" ref") != std::string::npos;
  }
  void print() const {
    std::printf("%-96s %-44s %9.3f ms %7.1f GFLOP/s  gemm %7.1f  %5.2f\n", name.c_str(),
                measured.implementation.c_str(), measured.seconds * 1e3, measured.rate, product_rate,
                share());
  }
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    backend_ = std::move(*peer::make_cpu_backend({.threads = 1, .own_convolutions = options.own}));
  }

  int run() {
    std::vector<Convolution> list = read_list(options_.list);
    if (list.empty()) return std::fprintf(stderr, "no convolutions in '%s'\n", options_.list.c_str()), 2;
    if (options_.quick) list = least_of_each_kind(list);
    std::printf("%s, %zu convolutions\n", backend_->numerics_fingerprint().c_str(), list.size());
    for (const Convolution& c : list) directions(c);
    return report();
  }

 private:
  // A group's product c[m,n] = a[m,k] b[k,n].
  double product_rate(int64_t m, int64_t n, int64_t k) {
    const auto [it, fresh] = products_.emplace(std::tuple(m, n, k), 0.0);
    if (fresh) {
      const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
      it->second =
          measure(*backend_, one_op(OpKind::MatMul, {{m, k}, {k, n}}, {}), OpKind::MatMul, flops).rate;
    }
    return it->second;
  }

  void directions(const Convolution& c) {
    Attributes attributes{{Attr::Strides, c.strides},
                          {Attr::Pads, c.pads},
                          {Attr::Dilations, c.dilations},
                          {Attr::Groups, c.groups}};
    const int64_t positions = Convolution::count(c.y, 2) * c.y[0], taps = Convolution::count(c.w, 1);
    const auto add = [&](const char* what, OpKind kind, const std::vector<Shape>& operands, int64_t m,
                         int64_t n, int64_t k) {
      const std::string name = std::string(what) + " " + c.text() + " " + c.model;
      if (name.find(options_.only) == std::string::npos) return;
      // At like arithmetic intensity: where a stride leaves out most of x, the product moves less.
      const double bytes = static_cast<double>(Convolution::count(c.x, 0) + Convolution::count(c.y, 0));
      const double product_bytes = static_cast<double>(c.groups * (m * k + k * n + m * n));
      rows_.push_back({name, measure(*backend_, one_op(kind, operands, attributes), kind, c.flops()),
                       product_rate(m, n, k) / std::max(1.0, bytes / product_bytes)});
      if (options_.all) rows_.back().print();
    };
    add("y ", OpKind::Conv, {c.x, c.w}, c.filters(), positions, taps);
    attributes.set(Attr::Shape, c.x);
    if (c.x[1] > 4)  // a model's first layer has no use for it
      add("dx", OpKind::ConvGradInput, {c.y, c.w}, taps, positions, c.filters());
    attributes.set(Attr::Shape, c.w);
    add("dw", OpKind::ConvGradWeight, {c.x, c.y}, c.filters(), taps, positions);
  }

  int report() {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.share() < b.share(); });
    std::map<std::string, std::pair<int, double>> implementations;
    double seconds = 0, products = 0;
    for (const Row& row : rows_) {
      auto& [count, time] = implementations[row.measured.implementation];
      ++count, time += row.measured.seconds;
      seconds += row.measured.seconds, products += row.measured.seconds * row.share();
    }
    std::printf("\nslowest beside the matrix product\n");
    for (size_t i = 0; i < std::min<size_t>(rows_.size(), 25); ++i) rows_[i].print();
    std::printf("\nby implementation\n");
    for (const auto& [name, cost] : implementations)
      std::printf("%-60s %5d %9.1f ms\n", name.c_str(), cost.first, cost.second * 1e3);
    std::printf("all: %.1f ms, the matrix products %.1f ms\n", seconds * 1e3, products * 1e3);
    int failed = 0;
    for (const Row& row : rows_) {
      const bool slow = !(row.share() >= kLeastShare);
      if (!row.is_reference() && !slow) continue;
      std::printf("FAILED %s: %s\n", row.is_reference() ? "reference loops" : "too slow", row.name.c_str());
      ++failed;
    }
    std::printf("%d of %zu failed\n", failed, rows_.size());
    return failed == 0 ? 0 : 1;
  }

  Options options_;
  std::unique_ptr<peer::Backend> backend_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, double> products_;
  std::vector<Row> rows_;
};

std::vector<std::string> instruction_sets() {
  std::vector<std::string> sets;
#ifdef __x86_64__
  __builtin_cpu_init();
  sets.push_back("SSE41");
  if (__builtin_cpu_supports("avx2")) sets.push_back("AVX2");
  if (!__builtin_cpu_supports("avx512bw")) return sets;  // ALL is the last of these
  sets.push_back("AVX512_CORE");
#endif
  sets.push_back("ALL");
  return sets;
}

// Runs this program anew under one instruction set; its exit code.
int run_under(const std::string& isa, char** argv) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("ONEDNN_MAX_CPU_ISA", isa.c_str(), 1);
    setenv("WEFT_BENCH_CHILD", "1", 1);
    execv("/proc/self/exe", argv);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (word == "--list")
      options.list = value();
    else if (word == "--isa")
      options.isa = value();
    else if (word == "--only")
      options.only = value();
    else if (word == "--quick")
      options.quick = true;
    else if (word == "--all")
      options.all = true;
    else if (word == "--own")
      options.own = true;
    else {
      std::printf(
          "weft_bench_convolutions [--quick] [--all] [--own] [--isa NAME] [--only TEXT] [--list FILE]\n");
      std::exit(word == "--help" ? 0 : 2);
    }
  }
  return options;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  const weft::Options options = weft::parse(argc, argv);
  if (std::getenv("WEFT_BENCH_CHILD") != nullptr) return weft::Bench(options).run();
  int worst = 0;
  std::vector<std::string> sets = weft::instruction_sets();
  if (!options.isa.empty()) sets = {options.isa};
  for (const std::string& isa : sets) {
    std::printf("\n==== ONEDNN_MAX_CPU_ISA=%s\n", isa.c_str());
    worst = std::max(worst, weft::run_under(isa, argv));
  }
  return worst;
}
