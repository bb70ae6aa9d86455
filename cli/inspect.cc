// weft inspect: what a model holds and what training it would mean.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "cli/commands.h"
#include "cli/coverage_report.h"
#include "cli/exit_codes.h"
#include "cli/inspect_data.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "dag/onnx/inspect.h"
#include "dag/onnx/model.h"
#include "dag/onnx/outline.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::cli {
namespace {

struct InspectOptions {
  std::string model;
  std::vector<std::string> train, freeze, sizes, read;
  int64_t batch = 0;
  bool all = false, values = false;
  std::string device, format = "text";
};

constexpr size_t kRowsShown = 12;
using HostOps = std::map<std::string, int64_t>;  // by name, how often

std::string describe(const onnx::OnnxModel::Port& port) {
  return fmt::format("{} {}[{}]", port.name, port.dtype, fmt::join(port.dims, ","));
}

int64_t elements(const std::vector<onnx::ModelInfo::Entry>& entries) {
  int64_t sum = 0;
  for (const auto& entry : entries) sum += entry.spec.element_count();
  return sum;
}

std::string remarks(const onnx::ModelInfo::Entry& entry) {
  std::string text = entry.why;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (entry.held) add("frozen: it does not move");
  if (entry.readers > 1) add(fmt::format("read by {} nodes", entry.readers));
  if (!entry.looked_at) add("its values were not looked at");
  return text;
}

void print_entries(const char* title, const std::vector<onnx::ModelInfo::Entry>& entries, bool all) {
  if (entries.empty()) return;
  fmt::print("\n{}: {} tensors, {} elements\n", title, entries.size(), elements(entries));
  const size_t shown = all ? entries.size() : std::min(entries.size(), kRowsShown);
  for (size_t i = 0; i < shown; ++i) {
    const std::string more = remarks(entries[i]);
    fmt::print("  {:<48} {}{}{}\n", entries[i].name, to_string(entries[i].spec), more.empty() ? "" : "  ",
               more);
  }
  if (shown < entries.size()) fmt::print("  ... and {} more (--all)\n", entries.size() - shown);
}

void print_on_host(const std::string& device, const HostOps& ops) {
  if (ops.empty()) {
    fmt::print("\n{}: every op of training has a kernel\n", device);
    return;
  }
  fmt::print("\n{}: without a kernel, computed by the host (slow):", device);
  for (const auto& [name, count] : ops) fmt::print(" {} x{}", name, count);
  fmt::print("\n");
}

void print_open_sizes(const std::vector<std::string>& symbols) {
  std::vector<std::string> options;
  bool nameless = false;
  for (const std::string& symbol : symbols)
    symbol == "?" ? void(nameless = true) : options.push_back("--size " + symbol + "=N");
  fmt::print(
      "\nsizes of its inputs are open: a job takes them from its data{}{}; what stands above is what "
      "the file says alone\n",
      options.empty() ? "" : fmt::format(", here say {}", fmt::join(options, " ")),
      nameless ? " (some have no name)" : "");
}

void print_text(const InspectOptions& options, const onnx::ModelInfo& info,
                const std::optional<HostOps>& on_host) {
  fmt::print("{}: opset {}, by {}\n", options.model, info.opset,
             info.producer.empty() ? "an unnamed producer" : info.producer);
  for (const auto& port : info.inputs) fmt::print("input   {}\n", describe(port));
  for (const auto& port : info.outputs) fmt::print("output  {}\n", describe(port));
  fmt::print("\nops:");
  for (const auto& [name, count] : info.op_counts) fmt::print(" {} x{}", name, count);
  fmt::print("\n");
  print_entries("parameters (trained)", info.parameters, options.all);
  print_entries("frozen", info.frozen, options.all);
  print_entries("constant (not trained)", info.constants, options.all);
  print_entries("running statistics", info.running_statistics, options.all);
  if (on_host) print_on_host(options.device, *on_host);
  if (info.warnings.size() + info.notes.size() > 0) fmt::print("\n");
  for (const auto& note : info.notes) fmt::print("note: {}\n", note);
  for (const auto& warning : info.warnings) fmt::print("warning: {}\n", warning);
  if (!info.open_sizes.empty()) print_open_sizes(info.open_sizes);
  if (!info.problem.empty()) fmt::print("\nthis model cannot be trained as it is: {}\n", info.problem);
}

void print_json(const InspectOptions& options, const onnx::ModelInfo& info,
                const std::optional<HostOps>& on_host) {
  nlohmann::ordered_json json{
      {"event", "model"}, {"path", options.model}, {"opset", info.opset}, {"producer", info.producer}};
  const auto ports = [](const std::vector<onnx::OnnxModel::Port>& list) {
    auto array = nlohmann::ordered_json::array();
    for (const auto& port : list)
      array.push_back({{"name", port.name}, {"dtype", port.dtype}, {"dims", port.dims}});
    return array;
  };
  const auto entries = [](const std::vector<onnx::ModelInfo::Entry>& list) {
    auto array = nlohmann::ordered_json::array();
    for (const auto& entry : list) {
      array.push_back(
          {{"name", entry.name}, {"dtype", to_string(entry.spec.dtype)}, {"shape", entry.spec.shape}});
      if (!entry.why.empty()) array.back()["why"] = entry.why;
      if (entry.readers > 1) array.back()["readers"] = entry.readers;
      if (entry.held) array.back()["frozen"] = true;
      if (!entry.looked_at) array.back()["looked_at"] = false;
    }
    return array;
  };
  json["inputs"] = ports(info.inputs);
  json["outputs"] = ports(info.outputs);
  json["ops"] = info.op_counts;
  json["parameters"] = entries(info.parameters);
  json["frozen"] = entries(info.frozen);
  json["constants"] = entries(info.constants);
  json["running_statistics"] = entries(info.running_statistics);
  json["parameter_elements"] = info.parameter_elements;
  if (on_host) json["on_host"] = *on_host;
  json["open_sizes"] = info.open_sizes;
  json["warnings"] = info.warnings;
  json["notes"] = info.notes;
  json["problem"] = info.problem.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(info.problem);
  print_event(dump(json));
}

Status check_outputs(const onnx::OnnxModel& model, const std::vector<std::string>& names) {
  std::vector<std::string> outputs;
  for (const auto& port : model.outputs()) outputs.push_back(port.name);
  for (const std::string& name : names)
    if (std::find(outputs.begin(), outputs.end(), name) == outputs.end())
      return fail(ErrorCode::NotFound, fmt::format("the model has no output '{}'; its outputs are '{}'", name,
                                                   fmt::join(outputs, "', '")));
  return {};
}

Result<int> run_inspect(const InspectOptions& options) {
  if (is_data(options.model)) return inspect_data(options.model, options.format);
  WEFT_TRY(const onnx::OnnxModel model,
           options.values ? onnx::read_model(options.model) : onnx::read_outline(options.model));
  onnx::ImportOptions import;
  import.evaluate = peer::evaluate_reference;
  import.training = true;
  import.train = options.train;
  import.freeze = options.freeze;
  if (options.batch > 0) import.batch = options.batch;
  WEFT_TRY(import.sizes, parse_sizes(options.sizes));
  WEFT_TRY_STATUS(onnx::check_train(model, options.train));
  WEFT_TRY_STATUS(onnx::check_freeze(model, options.freeze));
  WEFT_TRY_STATUS(check_outputs(model, options.read));
  const onnx::ModelInfo info = onnx::inspect_model(model, import, dag::op_table(), options.read);
  std::optional<HostOps> on_host;
  if (options.device == "cuda" && info.problem.empty() && info.open_sizes.empty()) {
    if (!import.batch) import.batch = 2;  // where nobody says: enough for BatchNormalization to train
    WEFT_TRY(on_host, ops_left_to_host(model, import));
  }
  options.format == "json" ? print_json(options, info, on_host) : print_text(options, info, on_host);
  return info.problem.empty() ? kExitOk : kExitUnsupported;
}

}  // namespace

Result<std::map<std::string, int64_t>> parse_sizes(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> sizes;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    const char* const end = text.data() + text.size();
    const char* const begin = equals == std::string::npos ? end : text.data() + equals + 1;
    int64_t value = 0;
    const auto read = std::from_chars(begin, end, value);
    if (read.ec != std::errc() || read.ptr != end || value <= 0)
      return fail(ErrorCode::InvalidArgument, "--size wants name=number, not '" + text + "'");
    sizes[text.substr(0, equals)] = value;
  }
  return sizes;
}

void add_inspect(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("inspect", "show a model's inputs, ops, parameters and buffers, or what data hold");
  auto options = std::make_shared<InspectOptions>();
  command
      .option(
          "model", options->model,
          "the ONNX file; or data (a folder of photos, csv, npy, npz), or a job file for the data it reads")
      .required();
  command
      .option("--train", options->train,
              "constants that are trained too, or all that is trained (pattern; may be given again)")
      .one_value_each();
  command
      .option("--freeze", options->freeze, "initializers that are not trained (pattern; may be given again)")
      .one_value_each();
  command.option("--size", options->sizes, "a symbolic dim: name=number (may be given again)")
      .one_value_each();
  command
      .option("--loss", options->read,
              "an output that the loss reads (may be given again): warns of what it does not reach")
      .one_value_each();
  command.option("--batch", options->batch, "samples, where the first axis is symbolic");
  command
      .option("--device", options->device,
              "cuda: also which ops of training a GPU would leave to the host (needs no GPU)")
      .one_of({"cuda"});
  command.flag("--all", options->all, "list every tensor");
  command.flag("--values", options->values,
               "read all values: without it, tensors of more than 1 MiB are judged by how they are used");
  command.format(options->format);
  command.runs(chosen, [options] { return run_inspect(*options); });
}

}  // namespace weft::cli
