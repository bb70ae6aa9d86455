#include "web/metrics_page.h"

#include <string>
#include <string_view>
#include <utility>

#include "net/dial_policy.h"
#include "web/prometheus.h"

namespace weft::web {

namespace {

// Scrapers are few, and ask for one small thing.
ServerLimits limits_of_scrapes() {
  ServerLimits limits;
  limits.connections_max = 64;
  limits.connections_max_per_address = 32;
  limits.bodies_bytes_max = 1 << 20;
  limits.unsent_bytes_max = 64 << 20;
  return limits;
}

// "localhost", "127.0.0.1:7790", "[::1]:7790": no name that somebody else gave out.
bool names_this_machine(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    host = end == host.npos ? std::string_view() : host.substr(1, end - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return lower_case(host) == "localhost" || net::parse_ip(std::string(host)).has_value();
}

Response text(int status, std::string body) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = std::move(body)};
}

class MetricsPage final : public Handler {
 public:
  MetricsPage(std::shared_ptr<const LatestMetrics> metrics, bool is_local)
      : metrics_(std::move(metrics)), is_local_(is_local) {}

  void on_request(Request request, Responder responder) override { responder.send(answer(request)); }
  Response on_refused(int status, const std::string& message) override {
    return text(status, message + "\n");
  }

 private:
  Response answer(const Request& request) const {
    if (is_local_ && !names_this_machine(request.header("host").value_or("")))
      return text(403, "this port is for programs on this machine\n");
    if (request.path != "/metrics") return text(404, "there is /metrics\n");
    if (request.method != "GET" && request.method != "HEAD") return text(405, "GET /metrics\n");
    return {.status = 200,
            .content_type = std::string(kPrometheusType),
            .body = render_prometheus(metrics_->get()),
            .headers = {{"Cache-Control", "no-store"}}};
  }

  const std::shared_ptr<const LatestMetrics> metrics_;
  const bool is_local_;
};

}  // namespace

Result<std::unique_ptr<Server>> serve_metrics(const net::Endpoint& endpoint,
                                              std::shared_ptr<const LatestMetrics> metrics) {
  return Server::start({.endpoint = endpoint, .limits = limits_of_scrapes()},
                       std::make_shared<MetricsPage>(std::move(metrics), is_loopback(endpoint)));
}

}  // namespace weft::web
