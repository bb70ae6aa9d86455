#include "cli/inspect_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

#include "base/printable.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "configs/job.h"
#include "data/dataset.h"
#include "data/kinds.h"
#include "data/summary.h"

namespace weft::cli {
namespace {

constexpr size_t kClassesPrinted = 12;

std::string numbers_of(const data::ColumnSummary& column) {
  std::string text = column.low.empty() ? "nothing finite" : column.low + " to " + column.high;
  if (column.nan + column.infinite > 0)
    text += fmt::format(", {} NaN and {} infinite, the first in {}", column.nan, column.infinite,
                        column.first_not_finite);
  return text;
}

void print_classes(const data::ColumnSummary& column) {
  if (column.classes.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(column.classes.size(), kClassesPrinted); ++i)
    text +=
        fmt::format("{}{} x{}", i ? ", " : "", printable(column.classes[i].first), column.classes[i].second);
  if (column.classes.size() > kClassesPrinted)
    text += fmt::format(", and {} more", column.classes.size() - kClassesPrinted);
  fmt::print("          {} classes: {}\n", column.classes.size(), text);
}

void print_text(const std::string& name, const std::string& yaml, const data::Summary& summary) {
  fmt::print("{}: {} samples\n", name, summary.samples);
  for (const data::ColumnSummary& column : summary.columns) {
    fmt::print("column  {} {}: {}\n", printable(column.name), to_string(column.sample), numbers_of(column));
    print_classes(column);
    fmt::print("          first samples: {}\n", fmt::join(column.first, " | "));
  }
  for (const std::string& note : summary.notes) fmt::print("note: {}\n", note);
  for (const std::string& problem : summary.unreadable) fmt::print("unreadable: {}\n", problem);
  if (summary.unreadable_count > summary.unreadable.size())
    fmt::print("and {} more that cannot be read\n", summary.unreadable_count - summary.unreadable.size());
  if (!yaml.empty()) fmt::print("a job reads it by {}\n", yaml);
}

nlohmann::ordered_json json_of(const data::ColumnSummary& column) {
  nlohmann::ordered_json json{{"name", column.name},          {"dtype", to_string(column.sample.dtype)},
                              {"shape", column.sample.shape}, {"low", column.low},
                              {"high", column.high},          {"nan", column.nan},
                              {"infinite", column.infinite},  {"first_not_finite", column.first_not_finite},
                              {"first", column.first}};
  if (column.classes.empty()) return json;
  json["classes"] = nlohmann::ordered_json::array();
  for (const auto& [name, count] : column.classes)
    json["classes"].push_back({{"name", name}, {"samples", count}});
  return json;
}

void print_json(const std::string& name, const std::string& yaml, const data::Summary& summary) {
  nlohmann::ordered_json json{{"event", "data"}, {"path", name}, {"samples", summary.samples}};
  json["columns"] = nlohmann::ordered_json::array();
  for (const data::ColumnSummary& column : summary.columns) json["columns"].push_back(json_of(column));
  json["notes"] = summary.notes;
  json["unreadable"] = summary.unreadable;
  json["unreadable_samples"] = summary.unreadable_count;
  json["yaml"] = yaml;
  print_event(dump(json));
}

Result<int> show(const std::string& name, const std::string& yaml, const data::DataSpec& spec,
                 const std::string& format) {
  WEFT_TRY(const auto dataset, data::open_dataset(spec));
  WEFT_TRY(const data::Summary summary, data::summarise(*dataset));
  format == "json" ? print_json(name, yaml, summary) : print_text(name, yaml, summary);
  return summary.unreadable_count == 0 ? kExitOk : kExitUnsupported;
}

}  // namespace

bool is_data(const std::filesystem::path& path) {
  const data::FileKind kind = data::kind_of(path);
  return kind != data::FileKind::Onnx && kind != data::FileKind::Unknown && kind != data::FileKind::Text;
}

Result<int> inspect_data(const std::filesystem::path& path, const std::string& format) {
  if (data::kind_of(path) != data::FileKind::JobFile) {
    WEFT_TRY(const data::DataSpec spec, data::guess_spec(path));
    return show(path.string(), data::yaml_of(spec), spec, format);
  }
  WEFT_TRY(const configs::Job job, configs::load_job(path));
  int code = kExitOk;
  for (const auto& [name, spec] :
       {std::pair("data.train", &job.train), {"data.test", &job.test}, {"data.predict", &job.predict}})
    if (*spec) {
      WEFT_TRY(const int of_one, show(path.string() + " " + name, {}, **spec, format));
      code = std::max(code, of_one);
    }
  return code;
}

}  // namespace weft::cli
