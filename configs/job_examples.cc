#include <map>
#include <sstream>

#include "configs/job_keys.h"

namespace weft::configs {
namespace {

// The fewest lines of a job of each task, by key.
std::map<std::string, std::string, std::less<>> fewest_lines(Task task) {
  if (task == Task::Serve)
    return {{"model", "model: model.onnx"}, {"task", "task: serve"}, {"serve", "serve: {name: my-model}"}};
  const bool predicts = task == Task::Predict;
  std::map<std::string, std::string, std::less<>> lines = {
      {"model", "model: model.onnx"},
      {"task", predicts ? "task: predict" : "task: train"},
      {"inputs", "inputs: {x: image}"},
      {"data", predicts ? "data: {predict: {type: npz, path: images.npz}}"
                        : "data: {train: {type: npz, path: train.npz}}"},
      {"batch_size", "batch_size: 64"}};
  if (predicts) {
    lines["output"] = "output: out.npz";
  } else {
    lines["loss"] = "loss: {type: cross_entropy, logits: logits, labels: label}";
    lines["steps"] = "steps: 100";
    lines["optimizer"] = "optimizer: {type: adamw}";
  }
  return lines;
}

// "columns.COLUMN.scale" of "columns.image.scale".
std::string without_column(const std::string& path) {
  constexpr std::string_view kColumns = "columns.";
  const size_t last = path.rfind('.');
  if (!path.starts_with(kColumns) || last < kColumns.size()) return path;
  return "columns.COLUMN" + path.substr(last);
}

}  // namespace

std::string job_key_of(std::string_view asked_path) {
  std::string path(asked_path);
  for (const std::string_view set : {"data.train.", "data.test.", "data.predict."})
    if (path.starts_with(set)) return "data.SET." + without_column(path.substr(set.size()));
  if (path.starts_with("loss[].")) return "loss." + path.substr(7);
  if (path.starts_with("adapters[].")) return "adapters." + path.substr(11);
  if (path.starts_with("inputs.") && path.ends_with(".value")) return "inputs.INPUT.value";
  return path;
}

std::string example_job(const JobKey& key) {
  auto lines = fewest_lines(key.task);
  std::istringstream example{std::string(key.example)};
  for (std::string line; std::getline(example, line);) lines[line.substr(0, line.find(':'))] = line;
  if (lines.contains("epochs")) lines.erase("steps");
  std::string text;
  for (const auto& [name, line] : lines) text += line + "\n";
  return text;
}

Result<AskedKeys> asked_by_examples() {
  AskedKeys asked;
  for (const JobKeySection& section : job_key_sections())
    for (const JobKey& key : section.keys) {
      AskedKeys here;
      WEFT_TRY_STATUS(parse_job(example_job(key), {}, here));
      for (const auto& [path, takes] : here.takes) {
        std::string& known = asked.takes[job_key_of(path)];
        if (known.empty()) known = takes;
      }
    }
  return asked;
}

}  // namespace weft::configs
