interposed! { fn nothing() {} }
use crate::interposed::interposed;
