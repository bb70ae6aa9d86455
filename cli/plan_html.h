// A plan as one page for a browser: nothing is fetched, drawings are SVG within it, light or dark as the
// reader's system is, readable on a phone. Every text that came from outside is escaped.
#pragma once

#include <string>
#include <string_view>

#include "cli/plan_outcome.h"
#include "cli/plan_report.h"

namespace weft::cli {

// `comparison` may be nullptr.
std::string html_report(const PlanShown& shown, const Comparison* comparison);

// A page of a plan: `body` is in <main>.
std::string html_page(std::string_view job, const std::string& body);
// One of the figures that stand first.
std::string html_key_figure(const std::string& value, const std::string& name);
// The graph by stage.
std::string html_stages(const PlanShown& shown);

// Well-formed text for HTML and SVG, in elements and attributes: markup escaped, bytes that are no UTF-8 and
// control characters replaced.
std::string html_text(std::string_view text);

// The devices' bandwidths as a drawing: regions after each other with fences between them.
std::string html_heat_map(const plan::ClusterView& cluster);
// A step's tasks, a row for each stage, and its critical path.
std::string html_timeline(const PlanShown& shown);
// What each stage holds while a step goes on, of what its device has.
std::string html_memory(const PlanShown& shown);

}  // namespace weft::cli
