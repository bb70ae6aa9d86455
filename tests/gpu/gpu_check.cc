// weft_gpu_check: what the tests of the cuda backend check on a host's shim, on the GPU that the module finds
// (or on the shim, with WEFT_MODULES at the host's module). One line of JSON on standard output; what goes
// wrong, in words, on standard error.
//
//   about              which build, which device
//   ops                every case against the reference, random groups against their ops one by one
//   digests FILE       writes the SHA-256 of what each case of our own kernels gives
//   compare FILE       the same again: the same bits?
//   properties FILE    the GPU's properties, as cuDNN writes them (tests/cuda/device_properties)
//   convolutions FILE  what each engine of cuDNN takes for a network's convolutions
//
// Exit codes are those of `weft`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include "cli/command_line.h"

#include "base/rng.h"
#include "cli/exit_codes.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/modules/modules.h"
#include "tests/backend/large_cases.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/graph_on.h"
#include "tests/gpu/properties.h"

namespace weft::test {
namespace {

using dag::Tensor;
using nlohmann::json;
using peer::Backend;

struct Options {
  int device = 0;
  double seconds = 0;  // stop after so many; 0: never
  bool shuffled = false, quick = false;
  std::string file;
};

void print(const json& line) {
  std::printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
}
void tell(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

Result<std::unique_ptr<Backend>> open_backend(const Options& options) {
  WEFT_TRY(const peer::BackendModule* module, peer::open_module("cuda"));
  return module->make({.device = options.device});
}
bool is_host(const Backend& backend) {
  return backend.numerics_fingerprint().find("host device") != std::string::npos;
}
json head(std::string_view event, const Backend& backend) {
  return {{"event", event},
          {"build", peer::build_id()},
          {"fingerprint", backend.numerics_fingerprint()},
          {"host_device", is_host(backend)}};
}

// ---- running cases ----

// Calls `one` for each case with its kernels, which are compiled together beforehand, until the device is
// lost or the time, which begins then, is over; what could not be made is told as an error. False: not all
// were run.
using OnCase = std::function<Status(const GpuCase&, Result<GraphOn>&)>;
bool for_each_case(Backend& backend, const std::vector<const GpuCase*>& cases, double seconds_max,
                   const OnCase& one) {
  std::vector<Result<GraphOn>> made;
  for (const GpuCase* c : cases) made.push_back(GraphOn::make(backend, c->graph, c->precision));
  if (const Status prepared = backend.prepare(); !prepared) tell("compiling: " + prepared.error().message);
  const auto begun = std::chrono::steady_clock::now();
  const auto is_over = [&] {
    return seconds_max > 0 &&
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() > seconds_max;
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    if (is_over()) return false;
    if (const Status done = one(*cases[i], made[i]); !done) {
      tell("stopped at " + cases[i]->name + ": " + done.error().message);
      return false;
    }
  }
  return true;
}

Result<std::vector<Tensor>> values_of(GraphOn& graph, const GpuCase& c) {
  return graph.run(c.inputs, c.wanted, peer::kContext);
}
Result<std::vector<Tensor>> values_of(Backend& backend, const dag::Graph& graph, const GpuCase& c) {
  WEFT_TRY(GraphOn made, GraphOn::make(backend, graph));
  return values_of(made, c);
}

// A share of them all in an order of chance, so that whoever ends early has seen something of everything.
std::vector<const GpuCase*> chosen(const std::vector<GpuCase>& cases, const Options& options) {
  std::vector<const GpuCase*> list;
  for (const GpuCase& c : cases)
    if (!options.quick || c.kind == GpuCase::Kind::Op || c.kind == GpuCase::Kind::Group) list.push_back(&c);
  if (!options.shuffled) return list;
  const std::vector<uint32_t> order = epoch_permutation(1, 0, static_cast<uint32_t>(list.size()));
  std::vector<const GpuCase*> shuffled;
  for (const uint32_t i : order) shuffled.push_back(list[i]);
  return shuffled;
}

// ---- ops ----

// Of one kind of cases.
struct Tally {
  int ran = 0, failed = 0, skipped = 0, library = 0, on_the_host = 0;
  double worst = 0;  // error over tolerance
  std::string worst_case;
};

class OpsCheck {
 public:
  explicit OpsCheck(Backend& backend) : backend_(backend), reference_(peer::make_reference_backend()) {}

  // Error: the device is lost.
  Status run(const GpuCase& c, Result<GraphOn>& made) {
    Tally& tally = tallies_[c.kind];
    if (!made) return take_error(c, made.error());
    const auto actual = values_of(*made, c);
    if (!actual) return take_error(c, actual.error());
    ++tally.ran;
    tally.library += c.is_library;
    tally.on_the_host += made->implementation() == "reference";
    const auto why =
        c.kind == GpuCase::Kind::Group ? against_one_by_one(c, *actual) : against_reference(c, *actual);
    if (!why.empty()) add_failure(c, why + ", by " + made->implementation());
    return {};
  }

  json result() const {
    json rows = json::array();
    for (const auto& [kind, t] : tallies_)
      rows.push_back({{"name", to_string(kind)},
                      {"ran", t.ran},
                      {"failed", t.failed},
                      {"skipped", t.skipped},
                      {"library", t.library},
                      {"on_the_host", t.on_the_host},
                      {"worst", t.worst},
                      {"worst_case", t.worst_case}});
    return {{"rows", rows}, {"failures", failures_}};
  }
  bool good() const { return failures_.empty(); }

 private:
  Status take_error(const GpuCase& c, const Error& error) {
    if (error.code == ErrorCode::Unsupported && c.kind == GpuCase::Kind::Arithmetic) {
      ++tallies_[c.kind].skipped;  // the card has no such units
      return {};
    }
    add_failure(c, error.message);
    return error.code == ErrorCode::DeviceLost ? Status(fail(error)) : Status();
  }
  void add_failure(const GpuCase& c, const std::string& why) {
    ++tallies_[c.kind].failed;
    tell("FAILED: " + c.name + ": " + why);
    if (failures_.size() < 50) failures_.push_back({{"case", c.name}, {"why", why}});
  }

  std::string against_reference(const GpuCase& c, const std::vector<Tensor>& actual) {
    const auto expected = values_of(*reference_, c.graph, c);
    if (!expected) return "the reference: " + expected.error().message;
    double worst = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (actual[i].spec() != (*expected)[i].spec())
        return "output " + std::to_string(i) + " is of another shape";
      worst = std::max(worst, peer::relative_error(actual[i], (*expected)[i]) / c.tolerance);
    }
    Tally& tally = tallies_[c.kind];
    if (worst > tally.worst) tally.worst = worst, tally.worst_case = c.name;
    return worst <= 1 ? "" : std::to_string(worst) + " times the tolerance";
  }
  std::string against_one_by_one(const GpuCase& c, const std::vector<Tensor>& actual) {
    const auto expected = values_of(backend_, c.apart, c);
    if (!expected) return "op by op: " + expected.error().message;
    for (size_t i = 0; i < actual.size(); ++i)
      if (!same_values(actual[i], (*expected)[i]))
        return "output " + std::to_string(i) + " has other bits than op by op";
    return "";
  }

  Backend& backend_;
  const std::unique_ptr<Backend> reference_;
  std::map<GpuCase::Kind, Tally> tallies_;
  json failures_ = json::array();
};

Result<int> check_ops(const Options& options) {
  WEFT_TRY(const auto backend, open_backend(options));
  const std::vector<GpuCase> cases = gpu_cases();
  const auto list = chosen(cases, options);
  OpsCheck check(*backend);
  const bool complete =
      for_each_case(*backend, list, options.seconds,
                    [&](const GpuCase& c, Result<GraphOn>& made) { return check.run(c, made); });
  json line = head("ops", *backend);
  line.update(check.result());
  line["cases"] = list.size();
  line["complete"] = complete;
  print(line);
  return check.good() ? cli::kExitOk : cli::kExitFailed;
}

// ---- digests ----

// Of a case of our own kernels: what went in, what came out.
json digests_of(const GpuCase& c, const GraphOn& made, const std::vector<Tensor>& outputs) {
  json in = json::array(), out = json::array();
  for (const Tensor& input : c.inputs) in.push_back(digest_of(input).substr(0, 16));
  for (const Tensor& output : outputs) out.push_back(digest_of(output));
  return {{"implementation", made.implementation()}, {"inputs", in}, {"outputs", out}};
}

// By name. Without what the libraries decide, or the host.
Result<json> all_digests(Backend& backend, const Options& options) {
  const std::vector<GpuCase> cases = gpu_cases();
  json found = json::object();
  Status failed;
  const bool complete = for_each_case(backend, chosen(cases, options), options.seconds,
                                      [&](const GpuCase& c, Result<GraphOn>& made) -> Status {
                                        if (c.is_library) return {};
                                        if (!made) return failed = fail(made.error());
                                        if (made->implementation() == "reference") return {};
                                        const auto outputs = values_of(*made, c);
                                        if (!outputs) return failed = fail(outputs.error());
                                        found[c.name] = digests_of(c, *made, *outputs);
                                        return {};
                                      });
  if (!failed) return fail(failed.error());
  if (!complete)
    return fail(ErrorCode::Timeout, "not all cases in " + std::to_string(options.seconds) + " s");
  return found;
}

Result<int> write_digests(const Options& options) {
  WEFT_TRY(const auto backend, open_backend(options));
  json line = head("digests", *backend);
  WEFT_TRY(json cases, all_digests(*backend, options));
  json all = line;
  all["cases"] = cases;
  std::ofstream(options.file) << all.dump(0) << "\n";
  line["cases"] = cases.size();
  print(line);
  return cli::kExitOk;
}

Result<json> read_digests(const std::string& file) {
  std::ifstream in(file);
  if (!in) return fail(ErrorCode::NotFound, file + " cannot be read");
  json all = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object() || !all["cases"].is_object())
    return fail(ErrorCode::Corrupted, file + " holds no digests");
  if (all["build"] != std::string(peer::build_id()))
    return fail(ErrorCode::VersionMismatch, file + " is of another build, " + all["build"].dump());
  return all;
}

Result<int> compare_digests(const Options& options) {
  WEFT_TRY(const json expected, read_digests(options.file));
  WEFT_TRY(const auto backend, open_backend(options));
  WEFT_TRY(const json actual, all_digests(*backend, options));
  int equal = 0, other_inputs = 0;
  json different = json::array();
  for (const auto& [name, theirs] : expected["cases"].items()) {
    const json ours = actual.value(name, json());
    if (ours.is_null() || ours["implementation"] != theirs["implementation"])
      different.push_back(name + ": by " + (ours.is_null() ? "the host" : ours["implementation"].dump()) +
                          ", not by " + theirs["implementation"].dump());
    else if (ours["inputs"] != theirs["inputs"])
      ++other_inputs;  // drawn by functions of the C library, which need not be the same there
    else if (ours["outputs"] != theirs["outputs"])
      different.push_back(name + ": other bits, by " + theirs["implementation"].dump());
    else
      ++equal;
  }
  for (const auto& text : different) tell("FAILED: " + text.get<std::string>());
  json line = head("compare", *backend);
  line["equal"] = equal;
  line["other_inputs"] = other_inputs;
  line["different"] = different;
  line["expected_of"] = expected["fingerprint"];
  print(line);
  return different.empty() && equal > 0 ? cli::kExitOk : cli::kExitFailed;
}

// ---- the device ----

Result<int> say_about(const Options& options) {
  WEFT_TRY(const auto backend, open_backend(options));
  WEFT_TRY(const peer::MemoryUse memory, backend->memory());
  json line = head("about", *backend);
  line["memory_bytes"] = memory.total.value;
  line["free_bytes"] = memory.free.value;
  json arithmetic = json::array();
  for (const dag::Arithmetic each : dag::kArithmetics)
    if (backend->check({.compute = each})) arithmetic.push_back(to_string(each));
  line["arithmetic"] = arithmetic;
  print(line);
  return cli::kExitOk;
}

Result<int> write_properties(const Options& options) {
  WEFT_TRY(const std::string properties, device_properties(options.device));
  std::ofstream(options.file) << properties << "\n";
  print({{"event", "properties"}, {"file", options.file}});
  return cli::kExitOk;
}

Result<int> write_convolutions(const Options& options) {
  WEFT_TRY(const std::string found, device_convolutions(options.device));
  std::ofstream(options.file) << found << "\n";
  print({{"event", "convolutions"}, {"file", options.file}});
  return cli::kExitOk;
}

void add_command(cli::CommandLine program, Options& options, cli::Command& chosen_one,
                 const std::string& name, const std::string& about, Result<int> (*run)(const Options&),
                 bool has_file) {
  cli::CommandLine command = program.subcommand(name, about);
  command.option("--device", options.device, "which GPU, from 0");
  command.option("--seconds", options.seconds, "stop after so many");
  command.flag("--shuffled", options.shuffled, "cases in an order of chance, always the same");
  command.flag("--quick", options.quick, "small shapes alone");
  if (has_file) command.option("file", options.file).required();
  command.runs(chosen_one, [&options, run] { return run(options); });
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  using namespace weft::test;
  weft::cli::Program program("checks weft's CUDA backend on a GPU");
  program.line().needs_subcommand();
  Options options;
  weft::cli::Command chosen_one;
  add_command(program.line(), options, chosen_one, "about", "which build, which device", say_about, false);
  add_command(program.line(), options, chosen_one, "ops", "every case against the reference", check_ops,
              false);
  add_command(program.line(), options, chosen_one, "digests", "write what our own kernels give",
              write_digests, true);
  add_command(program.line(), options, chosen_one, "compare", "whether they give that", compare_digests,
              true);
  add_command(program.line(), options, chosen_one, "properties", "write the GPU's properties",
              write_properties, true);
  add_command(program.line(), options, chosen_one, "convolutions", "time cuDNN's engines", write_convolutions,
              true);
  if (const auto exit = program.parse(argc, argv)) return *exit;
  const weft::Result<int> result = chosen_one();
  std::fflush(stdout);
  return weft::cli::end_with(result);
}
