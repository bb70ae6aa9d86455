#include "web/api.h"

#include <algorithm>
#include <span>

#include "base/printable.h"
#include "web/api_sinks.h"
#include "web/openai.h"
#include "web/prometheus.h"

namespace weft::web {

namespace {

constexpr size_t kNameShown = 128, kOnceKeyMax = 255;

std::string shown(std::string_view text) { return printable(text.substr(0, kNameShown)); }

bool is_letter_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
bool is_stream_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 &&
         std::ranges::all_of(id, [](char c) { return is_letter_digit(c) || c == '-' || c == '_'; });
}

// What stands behind "Bearer ".
std::string_view bearer_token(const Request& request) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view value = request.header("authorization").value_or("");
  if (lower_case(value.substr(0, kScheme.size())) != kScheme) return {};
  const std::string_view rest = value.substr(kScheme.size());
  return rest.substr(std::min(rest.find_first_not_of(' '), rest.size()));
}

// Under which key it is asked, if under any. Errors: 400.
std::optional<ApiError> read_once(const Request& request, GenerateRequest& wanted) {
  const auto key = request.header("idempotency-key");
  if (!key) return {};
  const auto is_visible = [](char c) { return c > ' ' && c < '\x7f'; };
  if (key->empty() || key->size() > kOnceKeyMax || !std::ranges::all_of(*key, is_visible))
    return ApiError{.param = "Idempotency-Key",
                    .message = "Idempotency-Key: it has 1 to " + std::to_string(kOnceKeyMax) +
                               " characters of ASCII, without spaces"};
  wanted.once = Once{.caller = std::string(bearer_token(request)),
                     .key = std::string(*key),
                     .asked = request.path + "\n" + request.body};
  return {};
}

bool is_json(const Request& request) {
  const std::string_view type = request.header("content-type").value_or("");
  return lower_case(type.substr(0, type.find_first_of("; "))) == "application/json";
}

class Api final : public Handler {
 public:
  Api(std::shared_ptr<Service> service, ApiOptions options)
      : service_(std::move(service)), options_(std::move(options)) {}

  void on_begin(std::function<ServerStats()> stats) override { stats_ = std::move(stats); }
  std::optional<Response> on_head(const Request& request) override;
  void on_request(Request request, Responder responder) override;
  Response on_refused(int status, const std::string& message) override;

 private:
  // `name` is what stands behind a path that ends in '/'.
  using Work = void (Api::*)(const Request& request, std::string_view name, const Responder& responder);
  struct Route {
    std::string_view method, path;
    Access access;
    Work work;
  };
  static std::span<const Route> routes();
  static const Route* find(const Request& request);
  static ApiError not_found(const Request& request);
  std::optional<ApiError> judge(const Request& request, const Route& route) const;

  void list_models(const Request& request, std::string_view name, const Responder& responder);
  void show_model(const Request& request, std::string_view name, const Responder& responder);
  void complete(const Request& request, std::string_view name, const Responder& responder);
  void chat(const Request& request, std::string_view name, const Responder& responder);
  void resume(const Request& request, std::string_view name, const Responder& responder);
  void show_health(const Request& request, std::string_view name, const Responder& responder);
  void show_metrics(const Request& request, std::string_view name, const Responder& responder);
  void generate(const Request& asked, ApiResult<GenerateRequest> request, const Responder& responder);
  ApiError absent(const std::string& model) const;
  static void follow(const Responder& responder, std::shared_ptr<OpenRequest> running);

  const std::shared_ptr<Service> service_;
  const ApiOptions options_;
  std::function<ServerStats()> stats_;
};

std::span<const Api::Route> Api::routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/v1/models", Access::Generate, &Api::list_models},
      {"GET", "/v1/models/", Access::Generate, &Api::show_model},
      {"POST", "/v1/completions", Access::Generate, &Api::complete},
      {"POST", "/v1/chat/completions", Access::Generate, &Api::chat},
      {"GET", "/v1/streams/", Access::Generate, &Api::resume},
      {"GET", "/health", Access::Health, &Api::show_health},
      {"GET", "/metrics", Access::Metrics, &Api::show_metrics},
  };
  return kRoutes;
}

const Api::Route* Api::find(const Request& request) {
  for (const Route& route : routes()) {
    const bool fits = route.path.ends_with('/')
                          ? request.path.starts_with(route.path) && request.path.size() > route.path.size()
                          : request.path == route.path;
    if (fits) return &route;
  }
  return nullptr;
}

ApiError Api::not_found(const Request& request) {
  std::string message = "there is no " + shown(request.path) + " here; there is";
  for (const Route& route : routes()) message += " " + std::string(route.path);
  return {.status = 404, .code = "not_found", .message = message};
}

std::optional<ApiError> Api::judge(const Request& request, const Route& route) const {
  const auto origin = request.header("origin");
  if (origin && std::ranges::find(options_.origins, *origin) == options_.origins.end())
    return ApiError{.status = 403,
                    .code = "unknown_origin",
                    .message = "pages of " + shown(*origin) + " may not ask this port"};
  const auto verdict =
      options_.authorize ? options_.authorize(bearer_token(request), route.access) : Verdict::Allowed;
  if (verdict == Verdict::Unknown)
    return ApiError{.status = 401,
                    .type = "authentication_error",
                    .code = "invalid_api_key",
                    .message = "this port asks for a token that it knows: Authorization: Bearer TOKEN"};
  if (verdict == Verdict::Forbidden)
    return ApiError{.status = 403,
                    .type = "permission_error",
                    .code = "insufficient_permissions",
                    .message = "the role of this token does not allow " + std::string(route.path)};
  if (verdict == Verdict::Unsure)
    return ApiError{.status = 503,
                    .type = "service_unavailable_error",
                    .message = "whether this token is good cannot be said now; try again later",
                    .retry_after = 1};
  return {};
}

std::optional<Response> Api::on_head(const Request& request) {
  const Route* route = find(request);
  if (route == nullptr) return error_response(not_found(request));
  const bool is_read = route->method == "GET";
  if (request.method != route->method && !(is_read && request.method == "HEAD")) {
    Response response = error_response(
        {.status = 405, .message = std::string(route->path) + " is asked by " + std::string(route->method)});
    response.headers.push_back({"Allow", is_read ? "GET, HEAD" : "POST"});
    return response;
  }
  if (const auto error = judge(request, *route)) return error_response(*error);
  // A page elsewhere may send a form without asking first, but no JSON.
  if (!is_read && !is_json(request))
    return error_response({.status = 415, .message = "the body is JSON: Content-Type: application/json"});
  return {};
}

void Api::on_request(Request request, Responder responder) {
  const Route* route = find(request);
  if (route == nullptr) return responder.send(error_response(not_found(request)));
  const std::string_view name = std::string_view(request.path).substr(route->path.size());
  (this->*route->work)(request, name, responder);
}

Response Api::on_refused(int status, const std::string& message) {
  return error_response({.status = status,
                         .type = status == 503 ? "service_unavailable_error" : "invalid_request_error",
                         .message = message});
}

void Api::list_models(const Request&, std::string_view, const Responder& responder) {
  responder.send({.body = render_models(service_->models())});
}

ApiError Api::absent(const std::string& model) const {
  if (const auto why = service_->why_absent(model)) return *why;
  std::vector<std::string> names;
  for (ModelInfo& other : service_->models()) names.push_back(std::move(other.id));
  return unknown_model(shown(model), names);
}

void Api::show_model(const Request&, std::string_view name, const Responder& responder) {
  for (const ModelInfo& model : service_->models())
    if (model.id == name) return responder.send({.body = render_model(model)});
  responder.send(error_response(absent(std::string(name))));
}

void Api::complete(const Request& request, std::string_view, const Responder& responder) {
  generate(request, parse_completion(request.body), responder);
}
void Api::chat(const Request& request, std::string_view, const Responder& responder) {
  generate(request, parse_chat(request.body), responder);
}

void Api::generate(const Request& asked, ApiResult<GenerateRequest> request, const Responder& responder) {
  if (!request) return responder.send(error_response(request.error()));
  if (const auto error = read_once(asked, *request)) return responder.send(error_response(*error));
  const std::vector<ModelInfo> models = service_->models();
  if (std::ranges::find(models, request->model, &ModelInfo::id) == models.end())
    return responder.send(error_response(absent(request->model)));
  auto sink =
      request->is_stream ? make_stream_sink(responder) : make_whole_sink(responder, options_.whole_text_max);
  follow(responder, service_->start(std::move(*request), std::move(sink)));
}

void Api::resume(const Request& request, std::string_view name, const Responder& responder) {
  const std::string id(name);
  const std::string last(request.header("last-event-id").value_or(""));
  if (!is_stream_id(id))
    return responder.send(error_response({.status = 404, .message = "there is no stream of that name"}));
  if (!last.empty() && !events_seen(last, id))
    return responder.send(error_response(
        {.param = "Last-Event-ID", .message = "Last-Event-ID: it is " + id + "-N, and not " + shown(last)}));
  follow(responder, service_->resume(id, make_stream_sink(responder, last)));
}

void Api::follow(const Responder& responder, std::shared_ptr<OpenRequest> running) {
  if (running) responder.on_gone([running = std::move(running)] { running->cancel(); });
}

void Api::show_health(const Request&, std::string_view, const Responder& responder) {
  const Health health = service_->health();
  responder.send(
      {.status = health.is_well ? 200 : 503,
       .content_type = "text/plain; charset=utf-8",
       .body = (health.is_well ? "ok" : "unwell") + (health.what.empty() ? "" : ": " + health.what) + "\n"});
}

void Api::show_metrics(const Request&, std::string_view, const Responder& responder) {
  Metrics metrics = service_->metrics();
  if (stats_) metrics.merge(to_metrics(stats_()));
  responder.send({.content_type = std::string(kPrometheusType), .body = render_prometheus(metrics)});
}

}  // namespace

std::shared_ptr<Handler> make_api(std::shared_ptr<Service> service, ApiOptions options) {
  return std::make_shared<Api>(std::move(service), std::move(options));
}

}  // namespace weft::web
