//! Parts that all operations of the OpenAPI document share: problems and authentication.

use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Content, OpenApi, PathItem, Ref, RefOr, Response};

use crate::types::PROBLEM_TYPE;

/// The token of `listen.api_token_file`.
const ALL: &str = "api_token";
/// That of `listen.api_read_token_file`.
const READ: &str = "api_read_token";

/// Adds both tokens to the document.
pub(crate) fn complete(document: &mut OpenApi) {
    let components = document.components.get_or_insert_with(Components::default);
    for (name, description) in [
        (ALL, "The token in the file of listen.api_token_file. It permits everything."),
        (READ, "The token in the file of listen.api_read_token_file. It permits GET and HEAD."),
    ] {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some(description)).build();
        components.add_security_scheme(name, SecurityScheme::Http(scheme));
    }
    for PathItem { get, put, post, delete, patch, .. } in document.paths.paths.values_mut() {
        if let Some(operation) = get {
            declare(operation, &[ALL, READ]);
        }
        for operation in [put, post, delete, patch].into_iter().flatten() {
            declare(operation, &[ALL]);
            let refused = "The token of listen.api_read_token_file permits only reading.";
            operation.responses.responses.insert("403".to_owned(), problem(refused));
        }
    }
}

/// Requires one of `tokens`, or none at the Unix socket; and adds the problems of every request.
fn declare(operation: &mut Operation, tokens: &[&str]) {
    let tokens = tokens.iter().map(|&token| SecurityRequirement::new(token, [""; 0]));
    operation.security = Some(tokens.chain([SecurityRequirement::default()]).collect());
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        let RefOr::T(response) = response else { continue };
        if response.description.is_empty() {
            response.description = meaning(status).to_owned();
        }
        if status.starts_with(['4', '5']) {
            as_problem(response);
        }
    }
    let missing = "Over TCP: the request has no valid token.";
    responses.insert("401".to_owned(), problem(missing));
    responses.insert("default".to_owned(), problem("Any other problem."));
}

fn problem(description: &str) -> RefOr<Response> {
    let mut response = Response::new(description);
    as_problem(&mut response);
    RefOr::T(response)
}

/// A response whose body is a problem.
fn as_problem(response: &mut Response) {
    let schema = Ref::from_schema_name("Problem");
    response.content.clear();
    response.content.insert(PROBLEM_TYPE.to_owned(), RefOr::T(Content::new(Some(schema))));
}

/// A short description of a status.
fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "The answer.",
        "201" => "Created.",
        "202" => "Accepted; executed after the answer.",
        "204" => "Done.",
        "404" => "Not found.",
        "507" => "It does not fit.",
        _ => "Refused; the problem gives the reason.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_who_may_ask() {
        let document: Value = serde_json::from_str(&crate::document()).unwrap();
        let schemes = &document["components"]["securitySchemes"];
        for token in [super::ALL, super::READ] {
            assert_eq!(schemes[token]["scheme"], "bearer");
        }
        let mut names = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name.to_owned()), "{name} twice");
                let security = operation["security"].as_array().unwrap();
                let has = |token: &str| security.iter().any(|it| it.get(token).is_some());
                let is_read = method == "get";
                assert!(has(super::ALL) && has(super::READ) == is_read, "{method} {path}");
                assert!(security.contains(&serde_json::json!({})), "{method} {path}: the socket");
                let responses = &operation["responses"];
                assert!(responses["401"].is_object(), "{method} {path}");
                assert_eq!(responses["403"].is_object(), !is_read, "{method} {path}");
                for (status, response) in responses.as_object().unwrap() {
                    assert_ne!(response["description"], "", "{method} {path} {status}");
                    let types = response["content"].as_object();
                    let types = types.map(|it| it.keys().collect::<Vec<_>>()).unwrap_or_default();
                    let is_problem = types == ["application/problem+json"];
                    assert_eq!(is_problem, !status.starts_with('2'), "{method} {path} {status}");
                }
            }
        }
    }
}
