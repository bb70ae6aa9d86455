#include "cli/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <ostream>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "dag/onnx/import.h"
#include "dag/onnx/testcase.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using dag::Tensor;

// The tolerances of ONNX's own runner.
constexpr double kRelative = 1e-3;
constexpr double kAbsolute = 1e-7;

struct Verdict {
  enum class Kind { Passed, Failed, Unsupported } kind = Kind::Passed;
  std::string reason;
};

std::vector<fs::path> numbered_files(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> files;
  for (int i = 0;; ++i) {
    fs::path path = folder / (prefix + std::to_string(i) + ".pb");
    if (!fs::exists(path)) return files;
    files.push_back(std::move(path));
  }
}

std::string compare(const Tensor& actual, const Tensor& expected) {
  if (actual.spec() != expected.spec())
    return "is " + to_string(actual.spec()) + ", expected " + to_string(expected.spec());
  if (!is_float(actual.dtype())) {
    const auto a = to_int64s(actual), e = to_int64s(expected);
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] != e[i])
        return "element " + std::to_string(i) + " is " + std::to_string(a[i]) + ", expected " +
               std::to_string(e[i]);
    return {};
  }
  // ONNX's runner compares bfloat16 values as 16-bit integers, where a neighbour is close enough.
  const double relative = actual.dtype() == dag::DType::BF16 ? 0x1p-7 : kRelative;
  const auto a = to_doubles(actual), e = to_doubles(expected);
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = (std::isnan(a[i]) && std::isnan(e[i])) || a[i] == e[i] ||
                      (std::isfinite(e[i]) && std::abs(a[i] - e[i]) <= kAbsolute + relative * std::abs(e[i]));
    if (!same)
      return "element " + std::to_string(i) + " is " + std::to_string(a[i]) + ", expected " +
             std::to_string(e[i]);
  }
  return {};
}

// Every op once, in order; a value is let go after its last reader.
Result<std::vector<Tensor>> execute(const dag::Graph& graph, const dag::Weights& weights,
                                    const std::map<std::string, Tensor>& inputs) {
  std::vector<Tensor> values(graph.values().size());
  for (const dag::Op& op : graph.ops()) {
    if (op.kind == dag::OpKind::Input || op.kind == dag::OpKind::Initializer ||
        op.kind == dag::OpKind::Constant) {
      const std::string& name =
          op.attributes.has(dag::Attr::Name) ? op.attributes.get_string(dag::Attr::Name) : op.name;
      values[op.outputs[0].index] = op.kind == dag::OpKind::Input         ? inputs.at(name)
                                    : op.kind == dag::OpKind::Initializer ? weights.find(name)->second
                                                                          : graph.constant(op);
      continue;
    }
    std::vector<const Tensor*> operands;
    std::vector<dag::TensorSpec> specs;
    operands.reserve(op.inputs.size());
    for (const dag::ValueId input : op.inputs)
      operands.push_back(input.valid() ? &values[input.index] : nullptr);
    specs.reserve(op.outputs.size());
    for (const dag::ValueId output : op.outputs) specs.push_back(graph.spec(output));
    WEFT_TRY(auto results, peer::evaluate_reference(op, operands, specs));
    for (size_t i = 0; i < results.size(); ++i) values[op.outputs[i].index] = std::move(results[i]);
  }
  std::vector<Tensor> outputs;
  for (const dag::GraphOutput& output : graph.outputs())
    if (output.role == dag::OutputRole::Prediction) outputs.push_back(values[output.value.index]);
  return outputs;
}

// ONNX's files keep bfloat16 values as the 16-bit integers of the same bits.
Tensor with_declared_type(Tensor tensor, std::string_view declared) {
  if (tensor.dtype() != dag::DType::U16 || declared != to_string(dag::DType::BF16)) return tensor;
  return Tensor({dag::DType::BF16, tensor.shape()}, tensor.bytes());
}

bool draws_random_numbers(const dag::Graph& graph) {
  return std::any_of(graph.ops().begin(), graph.ops().end(),
                     [](const dag::Op& op) { return dag::op_table().row(op.kind).draws; });
}

Verdict judge(const Error& error) {
  return {error.code == ErrorCode::Unsupported ? Verdict::Kind::Unsupported : Verdict::Kind::Failed,
          error.message};
}

Verdict run_data_set(const onnx::OnnxModel& model, const fs::path& folder) {
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.training = true;  // as the file says
  options.onnx_running_statistics = true;
  const auto ports = model.inputs();
  const auto files = numbered_files(folder, "input_");
  // Old files list initializers as inputs, and give no data for them.
  if (files.size() < ports.size()) {
    const auto survey = onnx::import_model(model, options, dag::op_table());
    if (!survey && survey.error().code == ErrorCode::Unsupported) return judge(survey.error());
    return {Verdict::Kind::Failed, "has " + std::to_string(files.size()) + " input files for " +
                                       std::to_string(ports.size()) + " inputs"};
  }
  std::map<std::string, Tensor> inputs;
  const auto bound = onnx::shape_inputs(model);
  for (size_t i = 0; i < ports.size(); ++i) {
    auto read = onnx::read_tensor_file(files[i]);
    if (!read) {
      // A model with operators that weft lacks is unsupported for that reason, whatever its data are.
      options.input_shapes[ports[i].name] = {};
      const auto survey = onnx::import_model(model, options, dag::op_table());
      if (!survey && survey.error().code == ErrorCode::Unsupported) return judge(survey.error());
      return judge(read.error());
    }
    read->tensor = with_declared_type(std::move(read->tensor), ports[i].dtype);
    options.input_shapes[ports[i].name] = read->tensor.shape();
    if (std::find(bound.begin(), bound.end(), ports[i].name) != bound.end())
      options.bound_inputs[ports[i].name] = read->tensor;
    inputs[ports[i].name] = std::move(read->tensor);
  }
  const auto imported = onnx::import_model(model, options, dag::op_table());
  if (!imported) return judge(imported.error());
  if (draws_random_numbers(imported->graph))
    return {Verdict::Kind::Unsupported, "the expected values were drawn by numpy's random number generator"};
  const auto outputs = execute(imported->graph, imported->weights, inputs);
  if (!outputs) return judge(outputs.error());
  const auto expected = numbered_files(folder, "output_");
  if (expected.empty() || expected.size() > outputs->size())
    return {Verdict::Kind::Failed, "has " + std::to_string(expected.size()) + " output files"};
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto want = onnx::read_tensor_file(expected[i]);
    if (!want) return judge(want.error());
    if (const std::string difference =
            compare((*outputs)[i], with_declared_type(want->tensor, model.outputs()[i].dtype));
        !difference.empty())
      return {Verdict::Kind::Failed, "output " + std::to_string(i) + " " + difference};
  }
  return {};
}

Verdict run_case(const fs::path& folder, const std::vector<fs::path>& data_sets) {
  const auto model = onnx::read_model(folder / "model.onnx");
  if (!model) return judge(model.error());
  for (const fs::path& data_set : data_sets)
    if (Verdict verdict = run_data_set(*model, data_set); verdict.kind != Verdict::Kind::Passed)
      return verdict;
  return {};
}

std::vector<fs::path> find_cases(const fs::path& directory) {
  std::vector<fs::path> cases;
  std::error_code error;
  for (fs::recursive_directory_iterator at(directory, fs::directory_options::skip_permission_denied, error),
       end;
       !error && at != end; at.increment(error))
    if (at->path().filename() == "model.onnx") cases.push_back(at->path().parent_path());
  std::sort(cases.begin(), cases.end());
  return cases;
}

}  // namespace

int run_conformance(const fs::path& directory, std::ostream& out, bool json) {
  size_t passed = 0, failed = 0, unsupported = 0;
  const auto tell = [&](const char* what, const std::string& name, const std::string& reason) {
    if (json)
      out << stamped(fmt::format(R"({{"event":"case","case":{},"verdict":"{}","reason":{}}})",
                                 json_string(name), what, json_string(reason)),
                     unix_ms_now())
          << '\n';
    else if (!reason.empty())
      out << what << ' ' << name << ": " << reason << '\n';
  };
  for (const fs::path& folder : find_cases(directory)) {
    std::vector<fs::path> data_sets;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().filename().string().starts_with("test_data_set_")) data_sets.push_back(entry.path());
    if (data_sets.empty()) continue;
    std::sort(data_sets.begin(), data_sets.end());
    const Verdict verdict = run_case(folder, data_sets);
    const std::string name = fs::relative(folder, directory, error).string();
    switch (verdict.kind) {
      case Verdict::Kind::Passed:
        ++passed;
        tell("passed", name, "");
        break;
      case Verdict::Kind::Failed:
        ++failed;
        tell("failed", name, verdict.reason);
        break;
      case Verdict::Kind::Unsupported:
        ++unsupported;
        tell("unsupported", name, verdict.reason);
        break;
    }
  }
  if (json)
    out << stamped(fmt::format(R"({{"event":"result","passed":{},"failed":{},"unsupported":{}}})", passed,
                               failed, unsupported),
                   unix_ms_now())
        << '\n';
  else
    out << passed << " passed, " << failed << " failed, " << unsupported << " unsupported\n";
  return failed == 0 && passed + unsupported > 0 ? kExitOk : kExitFailed;
}

void add_conformance(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("conformance", "run ONNX's own test cases beneath a folder");
  auto directory = std::make_shared<std::string>();
  command.option("directory", *directory, "for example /usr/share/libonnx-testdata/data").required();
  auto format = std::make_shared<std::string>("text");
  command.format(*format);
  command.runs(chosen, [directory, format]() -> Result<int> {
    if (!fs::is_directory(*directory))
      return fail(ErrorCode::NotFound, "'" + *directory + "' is not a folder");
    return run_conformance(*directory, std::cout, *format == "json");
  });
}

}  // namespace weft::cli
