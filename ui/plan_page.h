// How a job was planned, as a page of its own: each plan that it ran by, what was predicted of it, which peer
// got which stage, and why. Nothing is fetched by it; every text that came from outside is escaped.
#pragma once

#include <string>
#include <string_view>

#include "proto/messages.h"
#include "ui/job_history.h"

namespace weft::ui {

std::string plan_page(const proto::JobStatus& job, const JobHistory& history);

// Fit for the text of HTML and for what stands between quotes in it.
std::string escaped(std::string_view text);

}  // namespace weft::ui
