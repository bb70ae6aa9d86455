// A step drawn: who computes what when, what its end waits for, and what each stage holds meanwhile.
#include <fmt/format.h>

#include <algorithm>

#include "cli/plan_html.h"
#include "plan/explain.h"

namespace weft::cli {
namespace {

constexpr size_t kTasksDrawn = 4000;  // of a long step, the first microbatches
constexpr double kLeft = 34, kWidth = 1000 - kLeft, kRow = 18;
constexpr size_t kColumns = 160;  // of a curve

uint32_t microbatches_drawn(const plan::Timeline& timeline) {
  size_t tasks = 0;
  for (const auto& of_stage : timeline.stages) tasks += of_stage.size();
  if (tasks <= kTasksDrawn) return timeline.microbatches;
  return std::max<uint32_t>(1, static_cast<uint32_t>(timeline.microbatches * kTasksDrawn / tasks));
}

Duration last_end(const plan::Timeline& timeline, uint32_t drawn) {
  Duration last{};
  for (const auto& tasks : timeline.stages)
    for (const plan::TimelineTask& task : tasks)
      if (task.microbatch < drawn) last = std::max(last, task.end);
  return last;
}

std::string ticks(Duration last, double height) {
  std::string text;
  for (int tick = 0; tick <= 4; ++tick) {
    const double x = kLeft + kWidth * tick / 4;
    text += fmt::format(
        R"(<line class="grid" x1="{0:.1f}" y1="0" x2="{0:.1f}" y2="{1:.0f}"/><text x="{0:.1f}" y="{2:.0f}" text-anchor="{3}">{4}</text>)",
        x, height, height + 15,
        tick == 0   ? "start"
        : tick == 4 ? "end"
                    : "middle",
        plan::show(last * tick / 4));
  }
  return text;
}

std::string task_drawn(const plan::TimelineTask& task, double y, double scale) {
  const double x = kLeft + seconds(task.begin) * scale, width = seconds(task.end - task.begin) * scale;
  std::string text =
      fmt::format(R"(<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>)",
                  task.is_backward ? "b" : "f", x, y + 2, std::max(0.8, width - 0.4), kRow - 4);
  if (width > 13)
    text += fmt::format(R"(<text class="in" x="{:.2f}" y="{:.1f}">{}</text>)", x + width / 2, y + 12,
                        task.microbatch + 1);
  return text;
}

// One line from the step's begin on, along the rows and from row to row.
std::string critical_path(const plan::Timeline& timeline, Duration last, double scale) {
  const auto y = [](uint32_t stage) { return kRow * (stage + 1) - 1.5; };
  std::string line;
  for (const plan::CriticalPart& part : timeline.critical) {
    if (part.begin >= last) break;
    if (line.empty())
      line = fmt::format("M{:.2f} {:.1f}", kLeft + seconds(part.begin) * scale, y(part.stage));
    line +=
        fmt::format("L{:.2f} {:.1f}", kLeft + seconds(std::min(part.end, last)) * scale, y(part.to_stage));
  }
  return line.empty() ? line : R"(<path class="critical" d=")" + line + R"("/>)";
}

// By column, the most bytes that are held in it.
std::vector<int64_t> columns_of(const std::vector<MemoryPoint>& points, Duration last) {
  std::vector<int64_t> most(kColumns, 0);
  const double end = std::max(1e-12, seconds(last));
  for (size_t i = 0; i < points.size(); ++i) {
    const auto column = [&](Duration at) {
      return std::min(kColumns - 1, static_cast<size_t>(seconds(at) / end * kColumns));
    };
    const size_t to = i + 1 < points.size() ? column(points[i + 1].at) : kColumns - 1;
    for (size_t c = column(points[i].at); c <= to; ++c) most[c] = std::max(most[c], points[i].bytes.value);
  }
  return most;
}

std::string curve(const std::vector<MemoryPoint>& points, Duration last, Bytes of, bool is_full) {
  std::string path = "M0 100";
  const auto columns = columns_of(points, last);
  for (size_t c = 0; c < columns.size(); ++c) {
    const double share = static_cast<double>(columns[c]) / std::max(1.0, static_cast<double>(of.value));
    if (c == 0 || columns[c] != columns[c - 1])
      path += fmt::format("H{}V{:.1f}", c, 100 - 100 * std::min(1.0, share));
  }
  return fmt::format(
      R"(<svg class="curve{}" viewBox="0 0 {} 100" preserveAspectRatio="none" role="img" aria-label="memory over a step"><path d="{}H{}V100Z"/></svg>)",
      is_full ? " full" : "", kColumns, path, kColumns);
}

}  // namespace

std::string html_timeline(const PlanShown& shown) {
  const plan::Timeline& timeline = shown.plan->timeline;
  const uint32_t drawn = microbatches_drawn(timeline);
  const Duration last = last_end(timeline, drawn);
  const double height = kRow * static_cast<double>(timeline.stages.size());
  const double scale = kWidth / std::max(1e-12, seconds(last));
  std::string text = fmt::format(
      R"(<figure><div class="wide"><svg class="time" viewBox="0 0 1000 {:.0f}" role="img" aria-label="who computes what when">)",
      height + 20);
  text += ticks(last, height);
  for (size_t s = 0; s < timeline.stages.size(); ++s) {
    const double y = kRow * static_cast<double>(s);
    text += fmt::format(R"(<text x="2" y="{:.0f}">{}</text>)", y + 13, s + 1);
    for (const plan::TimelineTask& task : timeline.stages[s])
      if (task.microbatch < drawn) text += task_drawn(task, y, scale);
  }
  text +=
      critical_path(timeline, last, scale) +
      "</svg></div><ul class=\"legend\"><li><i class=\"f\"></i>forward</li><li><i "
      "class=\"b\"></i>backward</li><li><i class=\"w\"></i>critical path: what the end waits for</li></ul>"
      "<figcaption>One step from a standing start, a row for each stage, numbers are microbatches";
  if (drawn < shown.job->microbatches)
    text += "; the first " + std::to_string(drawn) + " of " + std::to_string(shown.job->microbatches);
  return text +
         ". A running job fills the gaps at both ends with the steps before and after.</figcaption></figure>";
}

std::string html_memory(const PlanShown& shown) {
  std::string text = "<div class=\"memory\">";
  const Duration last = last_end(shown.plan->timeline, shown.plan->timeline.microbatches);
  for (size_t s = 0; s < shown.plan->stages.size(); ++s) {
    const plan::StagePlan& stage = shown.plan->stages[s];
    const plan::DeviceView& device = shown.cluster->view.devices()[stage.devices.front()];
    const double share =
        static_cast<double>(stage.memory.value) / std::max(1.0, static_cast<double>(device.memory.value));
    text +=
        "<span>" + std::to_string(s + 1) + " " + html_text(device.name) + "</span>" +
        curve(memory_over_time(*shown.plan, s), last, device.memory, share > 0.95) + "<span class=\"of\">" +
        plan::show(stage.memory) + " of " + plan::show(device.memory) + ": " + plan::show(stage.persistent) +
        " always, " + plan::show(stage.microbatch) + " for each microbatch under way, at most " +
        std::to_string(stage.microbatches_in_flight) +
        (stage.recomputes ? "; forward values made again in backward: " + plan::show(stage.repeated) : "") +
        "</span>";
  }
  return text +
         "</div><p class=\"soft\">Across, a step from a standing start; the full height is the device's "
         "memory.</p>";
}

}  // namespace weft::cli
