// The columns of the broker's database that hold more than a number: what a target damages, and seeds are
// for.
#pragma once

#include <array>
#include <string_view>

namespace weft::fuzz {

struct StoredColumn {
  std::string_view table, column;
  std::string_view message;  // whose bytes it holds; empty: something else
};
inline constexpr std::array<StoredColumn, 20> kStoredColumns = {{
    {"principals", "principal", ""},
    {"principals", "role", ""},
    {"principals", "name", ""},
    {"jobs", "submitter", ""},
    {"jobs", "submission", "SubmitJob"},
    {"jobs", "state", ""},
    {"jobs", "reason", ""},
    {"jobs", "plan_version", ""},
    {"progress", "committed_step", ""},
    {"progress", "microbatch_size", ""},
    {"checkpoints", "report", "CheckpointReport"},
    {"checkpoints", "job", ""},
    {"predictions", "report", "PredictionReport"},
    {"results", "result", "JobResult"},
    {"events", "event", "JobEvent"},
    {"events", "sequence", ""},
    {"plans", "plan", "RunPlan"},
    {"plan_stages", "assignment", "AssignStage"},
    {"plan_stages", "stage", ""},
    {"script", "command", "Command"},
}};

}  // namespace weft::fuzz
