// What a broker says, as the JSON that the page reads. Texts that came from elsewhere are fit for one line;
// that they are no markup is the page's matter, which makes text of them and nothing else. Internal to ui/,
// for nlohmann's header costs a second a file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "proto/messages.h"
#include "ui/board.h"

namespace weft::ui {

using Json = nlohmann::ordered_json;

Json number(double value);  // null where it is not finite
Json render_job_line(const proto::JobStatus& job);
// With its stages, and of its curves what the page lacks.
Json render_job(const proto::JobStatus& job, const JobHistory& history, const Look& look);
Json render_peers(const proto::PeerList& list);
Json render_changes(const std::deque<PeerChange>& changes);
Json render_links(const proto::LinkList& list);
// Bytes that are no UTF-8 are replaced.
std::string dump(const Json& json);

}  // namespace weft::ui
