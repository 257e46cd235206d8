#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "serve/http.h"

namespace holdfast::serve {
namespace {

// The part of "/reload/{id}" before the variable, "/reload/"; the whole path when it has none.
std::string_view fixed_part(std::string_view path) { return path.substr(0, path.find('{')); }

bool has_variable(std::string_view path) { return path.ends_with('}'); }

// Whether the route's pattern takes `path`; then `parameter` is what stands for the variable.
bool takes(std::string_view pattern, std::string_view path, std::string& parameter) {
  if (!has_variable(pattern)) return pattern == path;
  const std::string_view fixed = fixed_part(pattern);
  if (!path.starts_with(fixed) || path.size() == fixed.size()) return false;
  const std::string_view rest = path.substr(fixed.size());
  if (rest.find('/') != std::string_view::npos) return false;
  parameter = rest;
  return true;
}

}  // namespace

std::string HttpRequest::query_value(const std::string& name, std::string otherwise) const {
  const auto found = query.find(name);
  return found == query.end() ? std::move(otherwise) : found->second;
}

Router::Route& Router::route(std::string method, std::string path) {
  HF_ASSERT(path.starts_with('/'), "a path of a route starts with a slash");
  const auto same = [&](const auto& other) {
    return other->method == method && other->path == path;
  };
  const auto found = std::find_if(routes_.begin(), routes_.end(), same);
  if (found != routes_.end()) return **found;
  routes_.push_back(std::make_unique<Route>());
  routes_.back()->method = std::move(method);
  routes_.back()->path = std::move(path);
  return *routes_.back();
}

void Router::add(std::string method, std::string path, Handler handler, Access access) {
  Route& added = route(std::move(method), std::move(path));
  HF_ASSERT(!added.handler, "this route has a handler");
  added.handler = std::move(handler);
  added.access = access;
}

void Router::add_upload(std::string method, std::string path, UploadHandler handler) {
  Route& added = route(std::move(method), std::move(path));
  HF_ASSERT(!added.upload, "this route has an upload");
  added.upload = std::move(handler);
}

Router::Match Router::find(std::string_view method, std::string_view path) const {
  // The pattern that the path belongs to, exact ones first; the method is looked at afterwards.
  std::string pattern, parameter;
  for (const auto& route : routes_) {
    std::string value;
    if (!takes(route->path, path, value)) continue;
    if (pattern.empty() || !has_variable(route->path)) {
      pattern = route->path;
      parameter = std::move(value);
    }
  }
  Match match;
  if (pattern.empty()) {
    match.status = otherwise_;
    match.message = otherwise_message_;
    return match;
  }
  const auto with_method = [&](std::string_view wanted) -> const Route* {
    const auto found = std::find_if(routes_.begin(), routes_.end(), [&](const auto& route) {
      return route->path == pattern && route->method == wanted;
    });
    return found == routes_.end() ? nullptr : found->get();
  };
  match.route = with_method(method);
  if (match.route == nullptr && method == "HEAD") match.route = with_method("GET");
  if (match.route != nullptr) {
    match.status = 200;
    match.parameter = std::move(parameter);
    return match;
  }
  match.status = 405;
  for (const auto& route : routes_) {
    if (route->path != pattern) continue;
    if (!match.allow.empty()) match.allow += ", ";
    match.allow += route->method == "GET" ? "GET, HEAD" : route->method;
  }
  return match;
}

void Router::refuse_others(int status, std::string message) {
  otherwise_ = status;
  otherwise_message_ = std::move(message);
}

std::vector<std::string> Router::paths() const {
  std::vector<std::string> paths;
  for (const auto& route : routes_) paths.push_back(route->method + " " + route->path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace holdfast::serve
