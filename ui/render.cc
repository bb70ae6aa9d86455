#include "ui/render.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/printable.h"

namespace weft::ui {

namespace {

constexpr size_t kTextShown = 2000, kPlanLinesShown = 400, kStagesShown = 256;
constexpr size_t kEndsOfMatrix = 24, kSitesShown = 24;

std::string shown(std::string_view text) { return printable(text.substr(0, kTextShown)); }

Json render_link_use(const proto::LinkUse& link) {
  return {{"stage", link.seat.stage},
          {"replica", link.seat.replica},
          {"bytes", link.bytes_sent},
          {"waiting", number(link.seconds_waiting)},
          {"dense", link.bytes_dense},
          {"encoded", link.bytes_encoded},
          {"relay", link.way == proto::LinkWay::Relay},
          {"error", link.errors > 0 ? number(link.error_sum / link.errors) : Json()}};
}

Json render_stage(const proto::StageStatus& stage) {
  Json links = Json::array();
  for (const proto::LinkUse& link : stage.links) links.push_back(render_link_use(link));
  return {{"stage", stage.seat.stage},
          {"replica", stage.seat.replica},
          {"peer", to_hex(stage.peer.digest)},
          {"name", shown(stage.peer_name)},
          {"region", shown(stage.region)},
          {"busy", number(stage.busy)},
          {"step", stage.step},
          {"links", std::move(links)}};
}

Json render_comparison(const proto::LinkComparison& c) {
  if (c.step == 0) return nullptr;
  return {{"step", c.step},
          {"loss", number(c.loss)},
          {"loss_dense", number(c.loss_dense)},
          {"gradient_error", number(c.gradient_error)}};
}

// Where in a curve the page goes on: the last point that it has may have become another.
size_t first_new(size_t known, size_t there, bool is_same) {
  return is_same && known > 0 && known <= there ? known - 1 : 0;
}

Json render_curves(const JobHistory& history, const Look& look) {
  const bool is_same = look.generation == history.generation();
  const auto steps = history.steps().points();
  const auto evaluations = history.evaluations().points();
  const size_t from = first_new(look.points, steps.size(), is_same);
  const size_t evaluations_from = first_new(look.evaluations, evaluations.size(), is_same);
  Json at = Json::array(), loss = Json::array(), rate = Json::array(), tests = Json::array();
  for (const StepPoint& point : steps.subspan(from)) {
    at.push_back(point.step);
    loss.push_back(number(point.loss));
    rate.push_back(number(point.samples_per_second));
  }
  for (const EvaluationPoint& point : evaluations.subspan(evaluations_from)) {
    Json metrics = Json::object();
    for (const auto& [name, value] : point.metrics) metrics[name] = number(value);
    tests.push_back({{"step", point.step}, {"metrics", std::move(metrics)}});
  }
  return {{"generation", history.generation()},
          {"from", from},
          {"step", std::move(at)},
          {"loss", std::move(loss)},
          {"rate", std::move(rate)},
          {"evaluations_from", evaluations_from},
          {"evaluations", std::move(tests)}};
}

Json render_lines(const std::deque<HistoryLine>& lines) {
  Json list = Json::array();
  for (size_t i = lines.size() - std::min(lines.size(), kLinesShown); i < lines.size(); ++i)
    list.push_back({{"ms", lines[i].unix_ms},
                    {"step", lines[i].step},
                    {"kind", lines[i].kind},
                    {"text", lines[i].text}});
  return list;
}

Json render_saving(const proto::JobStatus& job) {
  if (job.saving.step == 0) return {};
  return {{"step", job.saving.step}, {"bytes", job.saving.bytes.value}, {"saved", job.saving.saved.value}};
}

// Steps of a round by replica, and when all agreed last; nothing: there is one copy of the model.
Json render_replicas(const proto::JobStatus& job) {
  if (job.replicas.steps.empty()) return {};
  const bool agreed = job.replicas.agreed_step > 0;
  return {{"steps", job.replicas.steps},
          {"agreed_step", agreed ? Json(job.replicas.agreed_step) : Json()},
          {"seconds_since_agreement", agreed ? number(job.replicas.seconds_since_agreement) : Json()}};
}

Json render_figure(const proto::LinkFigure& link) {
  return {link.from,    link.to,      number(link.bytes_per_second), number(seconds(link.latency) * 1e3),
          link.assumed, link.relayed, number(link.seconds_since)};
}

}  // namespace

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::string dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json render_job_line(const proto::JobStatus& job) {
  return {{"job", job.job},
          {"name", shown(job.name)},
          {"state", std::string(to_string(job.state))},
          {"step", job.step},
          {"steps", job.steps},
          {"loss", number(job.loss)},
          {"reason", shown(job.reason)}};
}

Json render_job(const proto::JobStatus& job, const JobHistory& history, const Look& look) {
  Json json = render_job_line(job);
  json["submitter"] = shown(job.submitter);
  json["samples_per_second"] = number(job.samples_per_second);
  json["seconds_left"] = number(job.seconds_left);
  json["checkpoint_step"] = job.checkpoint_step;
  json["saving"] = render_saving(job);
  json["replicas"] = render_replicas(job);
  json["recovery_step"] = job.recovery_step;
  json["recoveries"] = job.recoveries;
  json["equal_bits"] = job.equal_bits;
  json["plan_version"] = job.plan_version;
  json["plan"] = Json::array();
  for (size_t i = 0; i < std::min(job.plan.size(), kPlanLinesShown); ++i)
    json["plan"].push_back(shown(job.plan[i]));
  json["stages"] = Json::array();
  for (size_t i = 0; i < std::min(job.stages.size(), kStagesShown); ++i)
    json["stages"].push_back(render_stage(job.stages[i]));
  json["comparison"] = render_comparison(job.comparison);
  json["curves"] = render_curves(history, look);
  json["lines"] = render_lines(history.lines());
  return json;
}

Json render_peers(const proto::PeerList& list) {
  Json peers = Json::array();
  for (size_t i = 0; i < std::min(list.peers.size(), kPeersShown); ++i) {
    const proto::PeerStatus& peer = list.peers[i];
    peers.push_back({{"peer", to_hex(peer.peer.digest)},
                     {"name", shown(peer.name)},
                     {"state", shown(peer.state)},
                     {"region", shown(peer.region)},
                     {"device", shown(peer.device)},
                     {"software", shown(peer.software)},
                     {"owner", shown(peer.owner)},
                     {"reason", shown(peer.reason)},
                     {"memory", peer.memory.value},
                     {"flops", number(peer.rates.matmul_flops_per_second)},
                     {"reachable", peer.reachable},
                     {"heard", number(peer.seconds_since_heard)}});
  }
  return {{"count", list.peers.size()}, {"list", std::move(peers)}};
}

Json render_changes(const std::deque<PeerChange>& changes) {
  Json list = Json::array();
  for (const PeerChange& change : changes)
    list.push_back({{"ms", change.unix_ms},
                    {"name", shown(change.name)},
                    {"region", shown(change.region)},
                    {"before", shown(change.before)},
                    {"after", shown(change.after)}});
  return list;
}

Json render_links(const proto::LinkList& list) {
  const bool is_matrix = !list.links.empty() && list.ends.size() <= kEndsOfMatrix;
  Json ends = Json::array(), links = Json::array();
  if (is_matrix)
    for (const proto::LinkEnd& end : list.ends)
      ends.push_back({{"name", shown(end.name)},
                      {"region", shown(end.region)},
                      {"up", number(end.uplink)},
                      {"down", number(end.downlink)}});
  for (const proto::LinkFigure& link : is_matrix ? list.links : list.between) {
    if (is_matrix || (link.from < kSitesShown && link.to < kSitesShown)) links.push_back(render_figure(link));
  }
  return {{"by_peer", is_matrix}, {"ends", std::move(ends)}, {"links", std::move(links)}};
}

}  // namespace weft::ui
